"""Collect what a verification knows so far: results, exclusions, notes and orders."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from sluice.etl.history.snapshots.place import PipelineContext
from sluice.etl.verify.differences import last_in_binlog
from sluice.etl.verify.result import TableResult
from sluice.etl.verify.row_diff import RowDiff
from sluice.etl.verify.saved_results import SavedResults
from sluice.etl.verify.tables import ExcludedTable
from sluice.relay.jobs import Job, JobCounts, JobRun
from sluice.tidb.schema import Table

__all__ = ["MAX_EXAMPLES", "ResultCollector"]

MAX_EXAMPLES = 20
"""The most rows of a table that are named."""
_MAX_BINLOG_LOOKUPS = 5
"""The number of named rows whose last change is looked up in the log."""
_SAVE_INTERVAL_S = 2.0


class ResultCollector:
    """Take results as they come. `ts`: the checkpoint (TSO) at which is read now."""

    def __init__(self, place: PipelineContext, job: Job, run: JobRun) -> None:
        self.place, self.run = place, run
        self._saved_results = SavedResults(place.relay.storage, job.id)
        self.results: dict[str, TableResult] = self._saved_results.load()
        self.left: dict[str, ExcludedTable] = {}
        self.notes: dict[str, None] = {}
        self.ts = 0
        self._saved = time.monotonic()

    def save(self) -> None:
        """Save the results for the process that continues the job."""
        self._saved_results.save(self.results)

    def take(self, result: TableResult) -> None:
        """Add a finished table."""
        self.results[result.name] = result
        if time.monotonic() - self._saved > _SAVE_INTERVAL_S:
            self._saved = time.monotonic()
            self.save()

    def add_differing(self, result: TableResult, apart: RowDiff | None) -> None:
        """Add a finished table with rows that differ, and their last changes in the binlog."""
        if apart is not None:
            self._saved_results.keep(apart)
            self.run.doing(f"looking for what was written of {result.name} last")
            explained = [
                one if one.binlog else last_in_binlog(self.place.settings, one, self.ts)
                for one in result.examples[:_MAX_BINLOG_LOOKUPS]
            ]
            result = replace(result, examples=(*explained, *result.examples[_MAX_BINLOG_LOOKUPS:]))
        self.take(result)

    def add_merged(self, first: Table, others: Iterable[Table], result: TableResult) -> None:
        """Add the tables that are merged with a compared one: they are done with it."""
        for other in others:
            differs = result.differences or result.more
            self.take(
                TableResult(
                    other.full_name,
                    result.downstream,
                    self.ts,
                    problem=f"rows of {first.full_name}, with which it is merged, differ"
                    if differs
                    else "",
                    notes=()
                    if differs
                    else (f"compared together with {first.full_name}, as they are merged",),
                )
            )

    def exclude(self, name: str, why: str) -> None:
        """Record a table that isn't compared."""
        self.left[name] = ExcludedTable(name, why)

    def did(self, name: str, done: JobCounts) -> None:
        """Report progress."""
        self.run.did(name, done)
        self.run.doing(name)

    def doing(self, what: str) -> None:
        """Record what comes next. Raises StopRequested, LeaseLostError."""
        self.run.check_order()
        self.run.doing(what)
