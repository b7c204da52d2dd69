"""Share what sinks have in common that write each transaction as the original Drainer's record."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sluice.etl.changes.rules import FOR_TIDB_ALONE, Filter, skip_reason
from sluice.etl.changes.steps import CommitDetail, ScopedDdl, Step, TransactionDetail
from sluice.etl.downstream import Checkpoint, SavepointFile
from sluice.etl.downstream.ddl import narrowed_statements
from sluice.etl.downstream.sinks.sink import (
    BeforeCommit,
    SinkResult,
    TopicCounts,
    always_confirm,
)
from sluice.tidb.ddl_actions import Action

_PASS_ALL = Filter()  # what filters leave out never becomes a step
# a reader of the file or topic may be a TiDB
_TIDB_ONLY_ACTIONS = FOR_TIDB_ALONE.keys() - {Action.REPAIR_TABLE}


def with_recorded_statement(ddl: ScopedDdl) -> tuple[ScopedDdl | None, list[str]]:
    """Return a ddl step's detail with the statement to be written as its query, and warnings.

    None if there is nothing to write. Raises DdlError, see `narrowed_statements`.
    """
    warnings: list[str] = []
    if ddl.replaced_by is not None:
        statements = [statement.rstrip().rstrip(";") for statement in ddl.replaced_by]
    else:
        plain = replace(ddl, type=0) if ddl.type in _TIDB_ONLY_ACTIONS else ddl
        if skip_reason(plain, _PASS_ALL) is not None:
            return None, []
        if not (ddl.left_out or ddl.shapes):
            return ddl, []
        statements, warnings = narrowed_statements(ddl)
    return (replace(ddl, query="; ".join(statements)) if statements else None), warnings


class BinlogSink(ABC):
    """The loop over steps. What was written counts from the next commit step on."""

    def __init__(self, savepoint: SavepointFile) -> None:
        self._savepoint = savepoint
        self._checkpoint: Checkpoint | None = None

    def run(self, steps: Iterable[Step], confirm: BeforeCommit = always_confirm) -> SinkResult:
        written = SinkResult()
        for step in steps:
            started = time.perf_counter()
            match step.detail:
                case TransactionDetail() as transactions:
                    self._write_records(memoryview(step.payload), transactions)
                    written.rows += step.rows
                    written.send_s += time.perf_counter() - started
                case ScopedDdl() as scoped:
                    ddl, warnings = with_recorded_statement(scoped)
                    written.warn(warnings)
                    if ddl is not None:
                        self._write_ddl(ddl)
                        written.ddls += 1
                    self._moved_to(step.commit_ts, scoped.schema_version or None)
                    written.ddl_s += time.perf_counter() - started
                case CommitDetail() as detail:
                    # as the row of a database's checkpoint is locked meanwhile
                    with self._savepoint.held():
                        confirm(step)
                        written.add_topics(self._make_durable(step))
                        self._save(self._moved_to(step.commit_ts, detail.schema_version))
                    written.commits += 1
                    written.changes += step.changes
                    written.add_stages(detail.timings_ms)
                    written.warn(detail.warnings)
                    written.commit_s += time.perf_counter() - started
                case _:
                    raise ValueError(f"unknown step {step.kind!r}")
        return written

    def _moved_to(self, commit_ts: int, schema_version: int | None) -> Checkpoint:
        self._checkpoint = (self._checkpoint or Checkpoint(0)).at(commit_ts, schema_version)
        return self._checkpoint

    @abstractmethod
    def _write_records(self, data: memoryview, detail: TransactionDetail) -> None:
        """Write whole records, or a piece of one with `detail.more` to come."""

    @abstractmethod
    def _write_ddl(self, ddl: ScopedDdl) -> None:
        """Write a statement, from a ddl step's detail."""

    @abstractmethod
    def _make_durable(self, step: Step) -> Mapping[str, TopicCounts]:
        """Make all durable that was written before this commit step; return what topics got."""

    @abstractmethod
    def _save(self, checkpoint: Checkpoint) -> None:
        """Write down that what is durable goes through the checkpoint."""
