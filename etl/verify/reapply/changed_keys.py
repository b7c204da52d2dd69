"""Collect the rows that a range of windows changes, by table.

They are given as they are at the range's end and at any later timestamp.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

import pyarrow as pa

from sluice.etl.changes.planning import BatchPayload
from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaReplay
from sluice.etl.changes.rules import Filter
from sluice.etl.changes.steps import LatestImagesDetail, from_batches
from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.verify.errors import ReplayRangeError
from sluice.etl.verify.reapply.latest_rows import LatestRows, merged_with_later
from sluice.relay import RelayLog, in_portions
from sluice.tidb import tso
from sluice.tidb.ddl_actions import MOVES_ROWS, REMOVES_ROWS
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Table

WRITE_PLAN = "newest"
_MAX_BATCH_WINDOWS = 2_000
_MAX_BATCH_CHANGES = 100_000
_MAX_BYTES = 1 << 30

PrepareLatest = Callable[[BatchPayload], Iterator[pa.RecordBatch]]
"""Windows to steps of WRITE_PLAN under the upstream's names, no routes."""


class ChangedKeys:
    """Keys of changed rows, of the tables that `filters` wants, and of all kinds of changes.

    `gather` once, then `advance` at will.
    """

    def __init__(
        self, relay: RelayLog, newest: PrepareLatest, filters: Filter, since: int, until: int
    ) -> None:
        """Prepare to collect keys that were touched after `since` through `until` (TSO)."""
        self._relay = relay
        self._prepare = newest
        self._filters = filters
        self._since = since
        self._until = until
        self._at = since
        self._schema = SchemaReplay(since)
        self._rows: dict[int, LatestRows] = {}
        self._later: dict[int, LatestRows] = {}

    @property
    def tables(self) -> dict[int, Table]:
        """Return the tables with changed rows, by id, as of the position reached upstream."""
        return {table_id: self._schema.tables[table_id] for table_id in self._rows}

    @property
    def at(self) -> int:
        """Return the TSO as of which rows are known."""
        return self._at

    def collect(self, gone_through: Callable[[int], None] = lambda ts: None) -> None:
        """Collect the changed rows; `gone_through` is called with each TSO reached, and may raise.

        Raises ReplayRangeError for what can't be repaired like this, ChangeError, relay errors, and
        what preparing raises.
        """
        for hi in self._advance_through(self._until, self._rows):
            gone_through(hi)
            size = sum(rows.bytes for rows in self._rows.values())
            if size > _MAX_BYTES:
                raise ReplayRangeError(
                    f"through {tso.text(hi)} the rows that were touched are {size >> 20} MiB"
                    " already: more than is kept in memory for this. Take a shorter range or fewer"
                    " tables, or copy the tables again: `sluice backfill`"
                )

    def advance(self, ts: int) -> None:
        """Go on to `ts` (TSO), which is landed. Raises as `collect`."""
        for _ in self._advance_through(ts, self._later):
            pass

    def rows(self, table_id: int) -> pa.Table:
        """Return each changed key's newest image where `collect` ended.

        See `sluice.etl.changes.write_plans.latest_images`.
        """
        return self._rows[table_id].rows

    def current(self, table_id: int, rows: pa.Table) -> pa.Table:
        """Return some of `rows` as they are at the position reached."""
        later = self._later.get(table_id)
        return merged_with_later(self._schema.tables[table_id], rows, later.rows) if later else rows

    def _advance_through(self, ts: int, into: dict[int, LatestRows]) -> Iterator[int]:
        """Take in what comes after `at` through `ts`; as far as it has come."""
        for windows in in_portions(
            self._relay, self._at, ts, windows=_MAX_BATCH_WINDOWS, changes=_MAX_BATCH_CHANGES
        ):
            for window in windows:
                self._follow(RecordedSchema.from_window(window), ts)
            hi = min(windows[-1].hi, ts)
            decided = list(self._relay.overrides.list(self._at, hi))
            document = BatchPayload.from_windows(windows, self._at, hi).decided(decided)
            for step in from_batches(self._prepare(document)):
                if isinstance(step.detail, LatestImagesDetail):
                    self._add(into, step.detail.table_id, step.payload)
            self._at = hi
            yield hi

    def _add(self, into: dict[int, LatestRows], table_id: int, payload: pa.Buffer) -> None:
        table = self._schema.tables[table_id]
        if not lookup_key_columns(table):
            raise ReplayRangeError(
                f"{table.full_name} has no key: which of its rows were touched is unknown. Copy"
                f" it again: `sluice backfill --table {shlex.quote(table.full_name)}`"
            )
        with pa.ipc.open_stream(payload) as reader:
            into.setdefault(table_id, LatestRows(table)).add(reader.read_all())

    def _follow(self, schema: RecordedSchema, ts: int) -> None:
        """Follow the tables' definitions behind a window, through `ts`.

        Raises ReplayRangeError if rows have changed without a change in the log.
        """
        self._schema.enter(schema)
        for move in schema.moved:
            if any(
                self._wants(self._schema.tables.get(table_id)) for table_id in move.effect.tables
            ):
                raise self._refused(f"DDL job {move.job_id}", move.finished_ts)
        for ddl in self._schema.advance(schema.ddls, ts):
            for table_id, before in ddl.before.items():
                after = ddl.effect.tables[table_id]
                if (
                    before is not None
                    and self._wants(before)
                    and (after is None or not _has_the_same_rows(ddl, before, after))
                ):
                    raise self._refused(
                        f"{ddl.title} ({' '.join(ddl.query.split())[:200]})", ddl.commit_ts
                    )

    def _refused(self, what: str, ts: int) -> ReplayRangeError:
        return ReplayRangeError(
            f"{what} changed a table, or moved or removed rows of it, in between: rows from before"
            f" can't be brought as they were logged. Begin behind it, --since {ts}, or copy the"
            " table again: `sluice backfill`"
        )

    def _wants(self, table: Table | None) -> bool:
        return (
            table is not None
            and table.is_base_table
            and self._filters.wants_table(table.schema_name, table.name)
        )


def _has_the_same_rows(ddl: DdlJob, before: Table, after: Table) -> bool:
    return (
        ddl.type not in REMOVES_ROWS | MOVES_ROWS
        and before.full_name == after.full_name
        and before.columns == after.columns
        and [column.name for column in lookup_key_columns(before)]
        == [column.name for column in lookup_key_columns(after)]
    )
