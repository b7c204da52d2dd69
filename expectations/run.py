"""Run the suites once: check them, keep the results, and act on grave ones."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.errors import SluiceError, ours
from sluice.etl.operate import APPLY, pause
from sluice.etl.settings import Downstream, Settings, with_target
from sluice.expectations.dataset import Dataset, using
from sluice.expectations.docs import DataDocs
from sluice.expectations.docs_pages import ExpectationLine
from sluice.expectations.results import QualityResults
from sluice.expectations.suite import REPLICATION, QualityError, QualityFailedError, Suite
from sluice.expectations.suite_files import SuiteFolder
from sluice.relay.quality import PASSED, SEVERITIES, FailedExpectation, QualityRun
from sluice.tidb.table_name import fits

if TYPE_CHECKING:
    from sluice.expectations.gx.runner import SuiteRunner
    from sluice.expectations.gx.source import Batches

__all__ = ["QualityRequest", "QualitySummary", "open_dataset", "run_quality"]

log = logging.getLogger("sluice.quality")

_STATE_BY_SEVERITY = {"warn": "warned", "fail": "failed", "pause": "paused"}
OnSuiteDone = Callable[[QualityRun], None]


@dataclass(frozen=True, slots=True)
class QualityRequest:
    """A request to check suites."""

    on: str = "downstream"
    """One of `sluice.expectations.suite.DATASETS`."""
    suites: tuple[str, ...] = ()
    """Names, also with * and ?; empty: all."""
    ts: int = 0
    """TSO as of which the lake is checked; 0: where the archive ends."""
    target: dict[str, Any] = field(default_factory=dict)
    """Server of a copy, as `sluice.etl.settings.read_target` gives it."""


@dataclass(frozen=True, slots=True)
class QualitySummary:
    """Outcome of a run."""

    run: str
    suites: tuple[QualityRun, ...]
    index: str
    """The Data Docs' first page: a path or a URL."""
    paused: bool = False
    """True if this run paused applying."""

    def check(self) -> None:
        """Raise QualityFailedError if an expectation failed that fails the run."""
        bad = [suite for suite in self.suites if suite.state not in (PASSED, "warned")]
        if bad:
            failure = "; ".join(f"{suite.suite}: {_suite_text(suite)}" for suite in bad[:5])
            raise QualityFailedError(f"{len(bad)} of {len(self.suites)} suites failed: {failure}")


def run_quality(
    settings: Settings, request: QualityRequest, say: OnSuiteDone = lambda _: None
) -> QualitySummary:
    """Check the suites.

    `say` is called with each suite as it is done. Raises QualityError and SuiteError if nothing can
    be checked, transient errors of the dataset, relay errors, OSError.
    """
    suites = _chosen_suites(settings, request)
    results, began_ms = QualityResults(settings), time.time_ns() // 1_000_000
    run = f"{began_ms:013d}-{secrets.token_hex(6)}"
    going = _Run(settings, run, began_ms, say)
    tables = [suite for suite in suites if suite.name != REPLICATION]
    from sluice.expectations.gx.runner import SuiteRunner

    looker = SuiteRunner()
    if len(tables) < len(suites):
        from sluice.expectations.replication import ReplicationDataset

        going.look(
            looker,
            next(s for s in suites if s.name == REPLICATION),
            ReplicationDataset(settings),
            None,
        )
    if tables:
        with open_dataset(settings, request) as (place, batches):
            for suite in tables:
                going.look(looker, suite, place, batches)
    paused = _pause_if_needed(settings, request, going.found)
    old = results.note(run, going.found)
    _index(going.docs, results, settings.quality.keep * max(1, len(going.found)) * 10, set(old))
    return QualitySummary(run, tuple(going.found), results.docs_index(), paused)


def _index(docs: DataDocs, results: QualityResults, most: int, old: set[str]) -> None:
    """Write the index until it is stable: of two runs that end together, the last sees both."""
    while True:
        every = results.runs(most)
        docs.index(every, {one.run for one in every} - old)
        if results.runs(most) == every:
            return


@contextmanager
def open_dataset(settings: Settings, request: QualityRequest) -> Iterator[tuple[Dataset, Batches]]:
    """Open the dataset of the request. Raises as `run_quality`."""
    from sluice.expectations.gx.source import ServerBatches, SparkBatches
    from sluice.expectations.server_dataset import open_copy_dataset, open_downstream_dataset

    match request.on:
        case "downstream":
            with open_downstream_dataset(settings) as place:
                yield place, ServerBatches(place)
        case "copy":
            target = with_target(settings, request.target).target
            if not isinstance(target, Downstream):
                raise QualityError(
                    f"a copy is checked in a database, not in a {type(target).__name__.lower()}"
                )
            with open_copy_dataset(target) as place:
                yield place, ServerBatches(place)
        case "lake":
            from sluice.expectations.lake_dataset import open_lake_dataset

            with open_lake_dataset(
                settings, request.ts, [suite.name for suite in _chosen_suites(settings, request)]
            ) as past:
                yield past, SparkBatches(past)
        case other:
            raise QualityError(f"on {other!r}: there are downstream, lake and copy")


class _Run:
    """A run in progress, suite after suite."""

    def __init__(self, settings: Settings, run: str, began_ms: int, say: OnSuiteDone) -> None:
        self.docs = QualityResults(settings).docs()
        self._settings = settings
        self.found: list[QualityRun] = []
        self._run, self._began_ms, self._on_suite_done = run, began_ms, say

    def look(
        self, looker: SuiteRunner, suite: Suite, place: Dataset, batches: Batches | None
    ) -> None:
        """Look at a suite, write its page.

        Raises what is transient: another run may find better conditions.
        """
        began = time.monotonic()
        lines: list[ExpectationLine] = []
        result, message = "{}\n", ""
        failures: tuple[FailedExpectation, ...] = ()
        own = suite.for_place(place.on)
        try:
            with using(place, self._settings):
                from sluice.expectations.gx.results import json_of, lines_of

                looked = looker.look(
                    own, batches, place.shape(suite.name).primary_key if batches else ()
                )
            failures, lines, result = looked.failures, lines_of(looked), json_of(looked)
        except Exception as error:
            failure = ours(error)
            if failure.transient and isinstance(error, SluiceError):
                raise
            log.warning(
                "suite %s: %s", suite.name, failure, exc_info=not isinstance(error, SluiceError)
            )
            message = str(failure)
        severity = max((f.severity for f in failures), key=SEVERITIES.index, default="")
        noted = QualityRun(
            id=f"{self._run}/{suite.name}",
            at_ms=self._began_ms,
            suite=suite.name,
            on=place.on,
            state="error" if message else _STATE_BY_SEVERITY.get(severity, PASSED),
            expectations=len(own.expectations),
            failed=len(failures),
            severity=severity,
            seconds=round(time.monotonic() - began, 3),
            run=self._run,
            ts=place.ts,
            page=DataDocs.page(self._run, suite.name),
            failures=failures,
            message=message,
        )
        self.docs.write(noted, lines, result)
        self.found.append(noted)
        self._on_suite_done(noted)


def _chosen_suites(settings: Settings, request: QualityRequest) -> list[Suite]:
    folder = SuiteFolder(Path(settings.quality.suites))
    suites = folder.suites()
    if not suites:
        raise QualityError(
            f"nothing is expected yet: there is no file in {folder.folder}",
            hint="`sluice quality init` proposes some",
        )
    of_copies = [suite for suite in suites if request.on != "copy" or suite.name != REPLICATION]
    chosen = [
        s
        for s in of_copies
        if not request.suites or any(fits(s.name, glob) for glob in request.suites)
    ]
    if not chosen:
        raise QualityError(
            f"no suite in {folder.folder} has such a name: {', '.join(request.suites)}"
        )
    return chosen


def _pause_if_needed(
    settings: Settings, request: QualityRequest, found: Sequence[QualityRun]
) -> bool:
    """Pause applying if that is what something grave asks for.

    Not for what a copy or the past is like.
    """
    grave = [suite for suite in found if suite.severity == "pause"]
    if not grave or (
        (request.on == "copy" or request.ts) and all(suite.suite != REPLICATION for suite in grave)
    ):
        return False
    log.error(
        "applying is paused: %s",
        "; ".join(f"{suite.suite}: {_suite_text(suite)}" for suite in grave),
    )
    pause(settings, APPLY)
    return True


def _suite_text(suite: QualityRun) -> str:
    if suite.message:
        return suite.message
    grave = [f for f in suite.failures if f.severity == suite.severity]
    return ", ".join(f"{f.about or f.expectation}: {f.observed}" for f in grave[:3])
