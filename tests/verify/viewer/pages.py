"""Models and pages of documents, as the command makes them."""

import json
from typing import Any

from latecomer.verify import families
from latecomer.verify.viewer.command import model_of


def model_of_text(name: str, text: bytes, part: str | None = None) -> dict[str, Any]:
    """The model of a file's text."""
    parsed = families.parse(text, name)
    return model_of(name, text, parsed.decoded, families.check(parsed), part)


def model_of_document(document: Any, part: str | None = None) -> dict[str, Any]:
    """The model of a JSON document."""
    return model_of_text("schedule.json", json.dumps(document).encode(), part)
