"""What mkdocs can't do by itself: navigation from folders, links to files outside of docs/.

A page appears in the navigation because it is there. Kinds come in the order of ``KINDS``; within a
kind pages come in the order in which docs/index.md names them, and those that it does not name
after them, by their names. A link that leaves docs/ (``../../examples/demo.py``) is right where the
repository is looked at; in the site it leads to a copy of the file, as text. Roles of references in
docstrings (``:func:``) are left out. A page that loads something from elsewhere ends the build.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

KINDS = {
    "tutorial": "Tutorial",
    "howto": "How-to",
    "explanation": "Explanation",
    "reference": "Reference",
    "measurements": "Measurements",
}
FOLDERS = {"api": "API"}
LINK = re.compile(r"(\]\(\s*)([^()\s#:]+)(#[^()\s]*)?(?=\s*\))")
FROM = r"(?:https?:)?//"
LOADED = re.compile(
    rf"""<(?:script|img|iframe)\b[^>]*\bsrc=["']?{FROM}[^>]*>"""
    rf"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preconnect|icon)\b)[^>]*\bhref=["']?{FROM}[^>]*>"""
)
ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):(?=<code>)")
FENCE = re.compile(r"^( *)(```+)[^\n`]*\n.*?^ *\2 *$", re.MULTILINE | re.DOTALL)


def navigation(pages: list[str], index: str) -> list[Any]:
    """The navigation of the pages (paths in docs/), given the text of docs/index.md."""
    named = [normpath(target) for _, target, _ in LINK.findall(index)]
    place = {page: named.index(page) if page in named else len(named) for page in pages}
    ordered = sorted(pages, key=lambda page: (place[page], page))
    sections = [{title: _section(PurePosixPath(kind), ordered)} for kind, title in KINDS.items()]
    ends = [page for page in ordered if "/" not in page and page != "index.md"]
    return ["index.md", *(each for each in sections if all(each.values())), *ends]


def _section(folder: PurePosixPath, pages: list[str]) -> list[Any]:
    """The pages of a folder, and then its folders."""
    inside = [page for page in pages if folder in PurePosixPath(page).parents]
    own = [page for page in inside if PurePosixPath(page).parent == folder]
    below = {PurePosixPath(page).relative_to(folder).parts[0] for page in inside} - {
        PurePosixPath(page).name for page in own
    }
    sections = [
        {FOLDERS.get(name, name.capitalize()): _section(folder / name, pages)}
        for name in sorted(below)
    ]
    return [*own, *sections]


def leaves_docs(target: str, page: str, root: Path) -> str | None:
    """The file (a path in the repository) to which a link of a page leads, if not into docs/."""
    path = normpath(PurePosixPath("docs", page).parent / target)
    inside = path.startswith(("docs/", "../"))
    return path if not inside and (root / path).is_file() else None


def on_files(files: Any, config: Any) -> Any:
    """Mkdocs calls it when it has listed docs/."""
    index = Path(config.docs_dir, "index.md").read_text()
    config.nav = navigation([file.src_uri for file in files.documentation_pages()], index)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Mkdocs calls it with the text of each page."""
    from mkdocs.structure.files import File

    root = Path(config.docs_dir).parent
    here = page.file.src_uri

    def copied(match: re.Match[str]) -> str:
        start, target, fragment = match.groups()
        path = leaves_docs(target, here, root)
        if path is None:
            return match[0]
        copy = f"source/{path}.txt"
        if files.get_file_from_path(copy) is None:
            files.append(File.generated(config, copy, content=(root / path).read_bytes()))
        return f"{start}{relpath(copy, PurePosixPath(here).parent)}{fragment or ''}"

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(copied, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(copied, markdown[end:])])


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Mkdocs calls it with each page's HTML."""
    return ROLE.sub("", html)


def elsewhere(html: str) -> list[str]:
    """The tags by which a page loads something from elsewhere."""
    return LOADED.findall(html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Mkdocs calls it with each page of the site."""
    if found := elsewhere(output):
        from mkdocs.exceptions import PluginError

        raise PluginError(f"{page.file.src_uri} loads from elsewhere: {', '.join(found)}")
    return output
