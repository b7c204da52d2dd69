"""Keep the Data Docs: the results of each kept run, as pages and as JSON.

index.html
style.css
runs/<run>/<suite>.html     what is expected, what was found, examples of rows
runs/<run>/<suite>.json     the validation result as Great Expectations writes it
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from sluice.expectations.docs_pages import STYLE, ExpectationLine, index_page, suite_page
from sluice.relay.quality import QualityRun
from sluice.relay.storage import Storage

__all__ = ["DataDocs"]

_RUNS = "runs"
_RUN = re.compile(r"\d{13}-[0-9a-f]{12}\Z")


class DataDocs:
    """The files, in a folder or in an object store. Every method raises OSError, RelayError."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @staticmethod
    def page(run: str, suite: str) -> str:
        """Return the path of a suite's page, below the folder."""
        return f"{_RUNS}/{run}/{quote(suite, safe='_-')}.html"

    def read(self, path: str) -> bytes | None:
        """Read a file by its path below the folder.

        None if there is none, or the path leads elsewhere.
        """
        parts = path.split("/")
        if any(not part or part.startswith(".") or set(part) & set("\\\0") for part in parts):
            return None
        try:
            return self._storage.read(path)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def write(self, run: QualityRun, lines: Sequence[ExpectationLine], result: str) -> None:
        """Write a suite's page, and its result beside it."""
        self._replace(run.page.removesuffix("html") + "json", result)
        self._replace(run.page, suite_page(run, lines))

    def index(self, runs: Sequence[QualityRun], kept: Iterable[str]) -> None:
        """Write the index again, and remove the pages of all runs but `kept`."""
        stay = set(kept)
        for name in self._storage.names(_RUNS):
            if _RUN.match(name) and name not in stay:
                self._remove(f"{_RUNS}/{name}")
        self._replace("style.css", STYLE)
        self._replace("index.html", index_page([run for run in runs if run.run in stay]))

    def _remove(self, folder: str) -> None:
        for name in self._storage.names(folder):
            self._storage.remove(f"{folder}/{name}")
        self._storage.remove_empty_directory(folder)

    def _replace(self, path: str, text: str) -> None:
        self._storage.replace(path, text.encode("utf-8", "replace"))
