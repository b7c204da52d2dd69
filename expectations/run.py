"""One run: suites are looked at, what they find is kept, and what is grave has its consequences."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errors import SluiceError, ours
from etl.operate import APPLY, pause
from etl.settings import Downstream, Settings, with_target
from expectations.docs import DataDocs
from expectations.docs_pages import Line
from expectations.errors import QualityError, QualityFailedError
from expectations.place import Place, at
from expectations.results import QualityResults
from expectations.suite import REPLICATION, Suite
from expectations.suite_files import SuiteFolder
from relay.quality import PASSED, SEVERITIES, FailedExpectation, QualityRun
from upstream.table_name import fits

if TYPE_CHECKING:
    from expectations.gx.looking import Looker
    from expectations.gx.source import Batches

__all__ = ["QualitySummary", "QualityWish", "open_place", "run_quality"]

log = logging.getLogger("sluice.quality")

_AFTER = {"warn": "warned", "fail": "failed", "pause": "paused"}
Say = Callable[[QualityRun], None]


@dataclass(frozen=True, slots=True)
class QualityWish:
    """What is to be looked at."""

    on: str = "downstream"
    """One of `expectations.suite.PLACES`."""
    suites: tuple[str, ...] = ()
    """Names, also with * and ?; empty: all."""
    ts: int = 0
    """Of the lake: as of this TSO; 0: where the archive ends."""
    target: dict[str, Any] = field(default_factory=dict)
    """Of a copy: where it is, as `etl.settings.read_target` gives it."""


@dataclass(frozen=True, slots=True)
class QualitySummary:
    """What came of a run."""

    run: str
    suites: tuple[QualityRun, ...]
    index: str
    """The Data Docs' first page: a path or a URL."""
    paused: bool = False
    """Whether applying was paused."""

    def check(self) -> None:
        """Raises QualityFailedError if anything failed that fails the run."""
        bad = [suite for suite in self.suites if suite.state not in (PASSED, "warned")]
        if bad:
            told = "; ".join(f"{suite.suite}: {_told(suite)}" for suite in bad[:5])
            raise QualityFailedError(f"{len(bad)} of {len(self.suites)} suites failed: {told}")


def run_quality(settings: Settings, wish: QualityWish, say: Say = lambda _: None) -> QualitySummary:
    """Look at the suites. `say` is told of each as it is done. Raises QualityError and SuiteError if nothing can be
    looked at, transient errors of what is looked at, relay errors, OSError.
    """
    suites = _chosen(settings, wish)
    results, began_ms = QualityResults(settings), time.time_ns() // 1_000_000
    run = f"{began_ms:013d}-{secrets.token_hex(6)}"
    going = _Run(settings, run, began_ms, say)
    tables = [suite for suite in suites if suite.name != REPLICATION]
    from expectations.gx.looking import Looker

    looker = Looker()
    if len(tables) < len(suites):
        from expectations.replication import ReplicationPlace

        going.look(looker, next(s for s in suites if s.name == REPLICATION), ReplicationPlace(settings), None)
    if tables:
        with open_place(settings, wish) as (place, batches):
            for suite in tables:
                going.look(looker, suite, place, batches)
    paused = _paused(settings, wish, going.found)
    old = results.note(run, going.found)
    _index(going.docs, results, settings.quality.keep * max(1, len(going.found)) * 10, set(old))
    return QualitySummary(run, tuple(going.found), results.docs_index(), paused)


def _index(docs: DataDocs, results: QualityResults, most: int, old: set[str]) -> None:
    """Two runs may end at a time: who writes the index last sees both."""
    while True:
        every = results.runs(most)
        docs.index(every, {one.run for one in every} - old)
        if results.runs(most) == every:
            return


@contextmanager
def open_place(settings: Settings, wish: QualityWish) -> Iterator[tuple[Place, Batches]]:
    """Where the tables are looked at. Raises as `run_quality`."""
    from expectations.gx.source import ServerBatches, SparkBatches
    from expectations.server_place import copy_place, downstream_place

    match wish.on:
        case "downstream":
            with downstream_place(settings) as place:
                yield place, ServerBatches(place)
        case "copy":
            target = with_target(settings, wish.target).target
            if not isinstance(target, Downstream):
                raise QualityError(f"a copy is looked at in a database, not in a {type(target).__name__.lower()}")
            with copy_place(target) as place:
                yield place, ServerBatches(place)
        case "lake":
            from expectations.lake_place import lake_place

            with lake_place(settings, wish.ts, [suite.name for suite in _chosen(settings, wish)]) as past:
                yield past, SparkBatches(past)
        case other:
            raise QualityError(f"on {other!r}: there are downstream, lake and copy")


class _Run:
    """What is found, suite after suite."""

    def __init__(self, settings: Settings, run: str, began_ms: int, say: Say) -> None:
        self.docs = QualityResults(settings).docs()
        self._settings = settings
        self.found: list[QualityRun] = []
        self._run, self._began_ms, self._say = run, began_ms, say

    def look(self, looker: Looker, suite: Suite, place: Place, batches: Batches | None) -> None:
        """Look at a suite, write its page. Raises what is transient: another run may find better conditions."""
        began = time.monotonic()
        lines: list[Line] = []
        result, said = "{}\n", ""
        failures: tuple[FailedExpectation, ...] = ()
        own = suite.for_place(place.on)
        try:
            with at(place, self._settings):
                from expectations.gx.results import json_of, lines_of

                looked = looker.look(own, batches, place.shape(suite.name).primary_key if batches else ())
            failures, lines, result = looked.failures, lines_of(looked), json_of(looked)
        except Exception as error:
            told = ours(error)
            if told.transient and isinstance(error, SluiceError):
                raise
            log.warning("suite %s: %s", suite.name, told, exc_info=not isinstance(error, SluiceError))
            said = str(told)
        severity = max((f.severity for f in failures), key=SEVERITIES.index, default="")
        noted = QualityRun(
            id=f"{self._run}/{suite.name}", at_ms=self._began_ms, suite=suite.name, on=place.on,
            state="error" if said else _AFTER.get(severity, PASSED), expectations=len(own.expectations),
            failed=len(failures), severity=severity, seconds=round(time.monotonic() - began, 3), run=self._run,
            ts=place.ts, page=DataDocs.page(self._run, suite.name), failures=failures, said=said,
        )  # fmt: skip
        self.docs.write(noted, lines, result)
        self.found.append(noted)
        self._say(noted)


def _chosen(settings: Settings, wish: QualityWish) -> list[Suite]:
    folder = SuiteFolder(Path(settings.quality.suites))
    suites = folder.suites()
    if not suites:
        raise QualityError(
            f"nothing is expected yet: there is no file in {folder.folder}",
            way_out="`sluice quality init` proposes some",
        )
    of_copies = [suite for suite in suites if wish.on != "copy" or suite.name != REPLICATION]
    chosen = [s for s in of_copies if not wish.suites or any(fits(s.name, glob) for glob in wish.suites)]
    if not chosen:
        raise QualityError(f"no suite in {folder.folder} has such a name: {', '.join(wish.suites)}")
    return chosen


def _paused(settings: Settings, wish: QualityWish, found: Sequence[QualityRun]) -> bool:
    """Pause applying if that is what something grave asks for; not for what a copy or the past is like."""
    grave = [suite for suite in found if suite.severity == "pause"]
    if not grave or ((wish.on == "copy" or wish.ts) and all(suite.suite != REPLICATION for suite in grave)):
        return False
    log.error("applying is paused: %s", "; ".join(f"{suite.suite}: {_told(suite)}" for suite in grave))
    pause(settings, APPLY)
    return True


def _told(suite: QualityRun) -> str:
    if suite.said:
        return suite.said
    grave = [f for f in suite.failures if f.severity == suite.severity]
    return ", ".join(f"{f.about or f.expectation}: {f.observed}" for f in grave[:3])
