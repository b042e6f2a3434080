"""The page: a template, its style and its scripts in one file, with the model as JSON in it.

What is shown is a *model*, a plain object that Python makes and the scripts draw. The page loads
nothing: its content security policy allows the one script whose hash it names, and no connection.
Texts of a file reach the page only through JSON, and the document only as text nodes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

ASSETS = "latecomer.verify.viewer", "assets"
SHARED = ("base.js", "surface.js", "player.js", "report.js")
"""Scripts of every page, in order; each model's own come after them."""

Model = dict[str, Any]


def source(package: str, *path: str) -> str:
    """The text of a file in a package; ``path`` as folders and a name."""
    return files(package).joinpath(*path).read_text("utf-8")


def shared(name: str) -> str:
    """The text of one of this folder's assets."""
    return source(*ASSETS, name)


def page(model: Model, scripts: Mapping[str, str]) -> str:
    """The whole page.

    Args:
        model: what to show; ``title`` names it, ``family`` says by which view.
        scripts: name -> text of the scripts that are this family's own, in order.
    """
    texts = {name: shared(name) for name in SHARED} | dict(scripts)
    script = "\n".join(f"// {name}\n{text}" for name, text in texts.items())
    script = f'"use strict";\n{script}\nstart();\n'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = msgspec.json.encode(model).decode()
    parts = {
        "TITLE": escape(str(model["title"])),
        "STYLE": shared("page.css"),
        "HASH": digest,
        "MODEL": data.replace("<", "\\u003c"),  # so no text of a file can end the element
        "SCRIPT": script,
    }
    assert "</script" not in script

    # The template is filled in one pass, so "{{" in a part is text, and no name of another part.
    before_first, *pieces = shared("page.html").split("{{")
    text = [before_first]
    for piece in pieces:
        name, _, after = piece.partition("}}")
        text.append(parts[name] + after)
    return "".join(text)
