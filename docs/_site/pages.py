"""Makes pages of the files in the repository's root, and links between them and the docs right.

See mkdocs.yml.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
_LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]+)?\)")

_MENTION = re.compile(r"(?<!\]\()(?<![\[`\w/])docs/((?:[\w-]+/)*([\w-]+)\.md)\b")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are no files in docs/."""
    for source, page in PAGES.items():
        files.append(
            File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8"))
        )
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links at pages, and make links of documents that are only named.

    What is a file of the repository but no page, such as code, is named without a link.
    """
    here = posixpath.dirname(page.file.src_uri)
    folder = "" if page.file.src_uri in PAGES.values() else posixpath.join("docs", here)

    def link(uri: str) -> str:
        return posixpath.relpath(uri, here or ".")

    def point(found: re.Match[str]) -> str:
        mark, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        if not (ROOT / path).exists():
            return found[0]  # mkdocs says that it is broken
        uri = PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        return (
            f"{mark}[{text}]({link(uri)}{anchor})"
            if uri and files.get_file_from_path(uri)
            else text
        )

    def name(found: re.Match[str]) -> str:
        return f"[{found[2]}]({link(found[1])})"

    return _MENTION.sub(name, _LINK.sub(point, markdown))
