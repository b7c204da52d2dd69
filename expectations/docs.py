"""The folder with the Data Docs: what was found by each run that is kept, as pages and as JSON.

index.html
style.css
runs/<run>/<suite>.html     what is expected, what was found, examples of rows
runs/<run>/<suite>.json     the validation result as Great Expectations writes it
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from expectations.docs_pages import STYLE, Line, index_page, suite_page
from relay.quality import QualityRun

__all__ = ["DataDocs"]

_RUNS = "runs"
_RUN = re.compile(r"\d{13}-[0-9a-f]{12}\Z")


class DataDocs:
    """The files. Every method raises OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def page(run: str, suite: str) -> str:
        """The path of a suite's page, below the folder."""
        return f"{_RUNS}/{run}/{quote(suite, safe='_-')}.html"

    def write(self, run: QualityRun, lines: Sequence[Line], result: str) -> None:
        """A suite's page, and its result beside it."""
        path = self.folder / run.page
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path.with_suffix(".json"), result)
        _replace(path, suite_page(run, lines))

    def index(self, runs: Sequence[QualityRun], kept: Iterable[str]) -> None:
        """The index anew, and the pages of runs that aren't kept any more go."""
        with self._alone():
            stay = set(kept)
            for path in (self.folder / _RUNS).glob("*"):
                if _RUN.match(path.name) and path.name not in stay:
                    shutil.rmtree(path, ignore_errors=True)
            _replace(self.folder / "style.css", STYLE)
            _replace(self.folder / "index.html", index_page([run for run in runs if run.run in stay]))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other process writes the index."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8", errors="replace")
    new.replace(path)
