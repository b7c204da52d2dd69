"""Results of data quality runs: one small JSON file for each run, beside the windows.

    quality/<when, Unix ms>-<token>.json
        [{"id": "…", "suite": "shop.orders", "state": "failed", …}, …]

A run checks several suites; each is one entry of its file. The newest runs are kept.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sluice.relay.json_codec import JsonDocument, from_bytes, to_bytes
from sluice.relay.storage import Storage

__all__ = ["PASSED", "SEVERITIES", "STATES", "FailedExpectation", "QualityRun", "QualityRuns"]

_FOLDER = "quality"
_NAME = re.compile(r"(\d{13})-([0-9a-f]{12})\.json\Z")

PASSED = "passed"
SEVERITIES = ("warn", "fail", "pause")
"""Effects of a failed expectation, from the least on.

It is reported; the run fails; the pipeline pauses as well.
"""
STATES = (PASSED, "warned", "failed", "paused", "error")
"""Outcomes of a suite. ``error``: it couldn't be checked."""


@dataclass(frozen=True, slots=True)
class FailedExpectation:
    """An expectation that failed.

    `observed` describes what was found; examples of rows are in the Data Docs.
    """

    expectation: str
    about: str
    """The column, or columns; empty for the whole table."""
    severity: str
    observed: str


@dataclass(frozen=True, slots=True)
class QualityRun(JsonDocument):
    """One suite in one run."""

    id: str
    at_ms: int
    """The time at which the run began, in Unix ms."""
    suite: str
    """The table downstream, ``schema.table``, or ``replication``."""
    on: str
    """The data that it checked: ``downstream``, ``lake``, ``copy``, ``replication``."""
    state: str
    """One of STATES."""
    expectations: int
    failed: int
    severity: str
    """The gravest one of those that failed, one of SEVERITIES; empty if all were met."""
    seconds: float
    run: str = ""
    """Names the run: its suites have it in common."""
    ts: int = 0
    """The data is as of this TSO; 0 if that isn't known."""
    page: str = ""
    """Its page in the Data Docs: a path below their folder, empty if there is none."""
    failures: tuple[FailedExpectation, ...] = ()
    message: str = ""
    """The cause of the state ``error``."""


class QualityRuns:
    """The runs in a relay log's storage.

    They are for people: one that can't be read is passed over.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def note(self, run: str, suites: Sequence[QualityRun], keep: int) -> list[str]:
        """Write down what a run found, and remove the oldest runs so that `keep` are left.

        The names (`QualityRun.run`) of those that were removed. Raises OSError, RelayError.
        """
        self._storage.replace(f"{_FOLDER}/{run}.json", to_bytes(suites))
        old = self._names()[keep:]
        for name in old:
            self._storage.remove(f"{_FOLDER}/{name}")
        return [name.removesuffix(".json") for name in old]

    def newest(self, most: int) -> list[QualityRun]:
        """Return the suites of the newest runs, at most `most`, newest first.

        Raises OSError, RelayError.
        """
        found: list[QualityRun] = []
        for suites in self._each():
            found += suites
            if len(found) >= most:
                break
        return found[:most]

    def last(self) -> list[QualityRun]:
        """Return the suites of the newest run. Raises OSError, RelayError."""
        return next(self._each(), [])

    def newest_ms(self) -> int:
        """Return when the newest run began, in Unix ms; 0 if there is none.

        Raises OSError, RelayError.
        """
        return int(next(iter(self._names()), "0").split("-")[0])

    def _each(self) -> Iterator[list[QualityRun]]:
        for name in self._names():
            with contextlib.suppress(FileNotFoundError, ValueError):
                text = self._storage.read(f"{_FOLDER}/{name}")
                yield from_bytes(list[QualityRun], text, "the results of a quality run")

    def _names(self) -> list[str]:
        return sorted(
            (name for name in self._storage.names(_FOLDER) if _NAME.match(name)), reverse=True
        )
