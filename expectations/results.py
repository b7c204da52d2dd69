"""Read the runs' results, for pages, metrics and the command line.

Great Expectations isn't needed for it.
"""

from __future__ import annotations

from pathlib import Path

from sluice.etl.settings import Settings
from sluice.expectations.docs import DataDocs
from sluice.relay.pipeline_folders import SubStorage
from sluice.relay.quality import FailedExpectation, QualityRun, QualityRuns
from sluice.relay.storage import Storage, open_storage
from sluice.relay.url import folder_of, local_folder

__all__ = ["FailedExpectation", "QualityResults", "QualityRun"]


class QualityResults:
    """Results of a pipeline's runs. Every method raises OSError, RelayError."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def runs(self, most: int = 100) -> list[QualityRun]:
        """Return the suites of the newest runs, newest first, at most `most`."""
        return self._runs().newest(most)

    def last(self) -> list[QualityRun]:
        """Return the suites of the newest run."""
        return self._runs().last()

    def newest_ms(self) -> int:
        """Return when the newest run began, Unix ms; 0 if there is none."""
        return self._runs().newest_ms()

    def note(self, run: str, suites: list[QualityRun]) -> list[str]:
        """Write down a run; the names of those that became too many and are removed."""
        return self._runs().note(run, suites, self._settings.quality.keep)

    def docs(self) -> DataDocs:
        """Return the Data Docs, which begin with ``index.html`` once there was a run."""
        return DataDocs(self._docs_place())

    def docs_index(self) -> str:
        """Return where their first page is, for people: a path, or the URL in an object store."""
        url = self._docs_place().url
        folder = local_folder(url)
        return str(folder / "index.html") if folder is not None else folder_of(url, "index.html")

    def _docs_place(self) -> Storage:
        if self._settings.quality.docs:
            return open_storage(Path(self._settings.quality.docs).as_uri())
        return SubStorage(self._settings.open_relay().place, "quality/docs")

    def _runs(self) -> QualityRuns:
        return QualityRuns(self._settings.open_relay().place)
