"""What the runs have found, for pages, metrics and the command line. Great Expectations isn't needed for it."""

from __future__ import annotations

from pathlib import Path

from etl.settings import Settings
from relay.quality import FailedExpectation, QualityRun, QualityRuns
from relay.url import local_folder

__all__ = ["FailedExpectation", "QualityResults", "QualityRun"]


class QualityResults:
    """What a pipeline's runs have found. Every method raises OSError, RelayError."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def runs(self, most: int = 100) -> list[QualityRun]:
        """At most so many suites of runs, newest first."""
        return self._kept().newest(most)

    def last(self) -> list[QualityRun]:
        """The suites of the newest run."""
        return self._kept().last()

    def newest_ms(self) -> int:
        """When the newest run began, Unix ms; 0 if there is none."""
        return self._kept().newest_ms()

    def note(self, run: str, suites: list[QualityRun]) -> list[str]:
        """Write down a run; the names of those that became too many and are removed."""
        return self._kept().note(run, suites, self._settings.quality.keep)

    def docs_folder(self) -> Path | None:
        """Where the Data Docs are, from its ``index.html`` on, once there was a run. None: there are none, as the relay
        log is in an object store and `[quality] docs` names no folder.
        """
        if self._settings.quality.docs:
            return Path(self._settings.quality.docs)
        if local_folder(self._settings.relay.url) is None:
            return None
        folder = local_folder(self._settings.open_relay().place.url)
        return None if folder is None else folder / "quality" / "docs"

    def _kept(self) -> QualityRuns:
        return QualityRuns(self._settings.open_relay().place)
