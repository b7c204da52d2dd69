"""Load one past transaction for people: its changes, and some rows, old and new.

Values are in readable form.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.mark_table import CHANNEL_COLUMN, is_mark_table
from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaTimeline
from sluice.etl.changes.rules import is_internal_table
from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.history.errors import FindError
from sluice.etl.history.find.display_value import DisplayValue, display_value, raw_value
from sluice.etl.history.find.recent import TimeBudget
from sluice.etl.history.find.results import FoundDdl, TableRows
from sluice.etl.history.history_log import HistoryLog
from sluice.relay import DELETE, INSERT, UPDATE, WindowLog, WindowRecord, iter_parts
from sluice.tidb import tso
from sluice.tidb.ddl_actions import REMOVES_ROWS, action_name
from sluice.tidb.id_maps import names_by_id
from sluice.tidb.rows import decode_deletes, decode_inserts, decode_updates
from sluice.tidb.schema import Table
from sluice.tidb.table_name import full_name

__all__ = [
    "ChangedRow",
    "ChangedValue",
    "NoTransactionError",
    "TransactionView",
    "load_transaction",
    "load_value",
]

_KINDS = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}
MAX_ROWS_SHOWN = 50


class NoTransactionError(FindError):
    """There is no transaction with this commit ts in the relay log and archive."""

    hint = "search for it by its table and time"


@dataclass(frozen=True, slots=True)
class ChangedValue:
    """A column's value before and after; None where there was no row.

    `key`: it is of the key by which rows are found.
    """

    column: str
    kind: str
    key: bool
    old: DisplayValue | None
    new: DisplayValue | None
    changed: bool


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A changed row; `kind`: insert, update or delete. `fault`: why the row can't be read."""

    position: int
    table: str
    kind: str
    values: tuple[ChangedValue, ...] = ()
    fault: str = ""


@dataclass(slots=True)
class TransactionView:
    """A transaction view.

    `window`: (lo, hi] of the one that it is in, `archived`: it is read from the archive.

    `tables` counts its rows, as far as they were read: all of them if `complete`. `rows`: those
    that were asked for. `left_out`: why landing left it out.
    """

    commit_ts: int
    start_ts: int = 0
    others: tuple[int, ...] = ()
    """Start timestamps of further transactions of this commit_ts."""
    window: tuple[int, int] = (0, 0)
    archived: bool = False
    tables: list[TableRows] = field(default_factory=list)
    rows: list[ChangedRow] = field(default_factory=list)
    ddl: FoundDdl | None = None
    left_out: str = ""
    channels: tuple[int, ...] = ()
    """The channels of its marks: a pipeline or Drainer wrote it, for what came from there."""
    complete: bool = True


def load_transaction(  # noqa: PLR0913 what is shown of it
    past: HistoryLog,
    commit_ts: int,
    table: str = "",
    offset: int = 0,
    patience: TimeBudget | None = None,
    start_ts: int = 0,
) -> TransactionView:
    """Load what was committed at `commit_ts` (TSO), with ROWS_SHOWN rows from number `offset` on.

    They are of `table` alone if that is named. Of several transactions it is the one that began at
    `start_ts`, or the first if that is 0. Counting ends with the time budget `patience`. Raises
    NoTransactionError, relay errors.
    """
    log, window = _window(past, commit_ts)
    view = TransactionView(
        commit_ts, start_ts, window=(window.lo, window.hi), archived=window.hi <= past.archived[1]
    )
    ddls = [ddl for ddl in RecordedSchema.from_window(window).ddls if ddl.commit_ts == commit_ts]
    skipped = {
        int(one["start_ts"]): str(one["why"])
        for one in window.skipped
        if int(one["commit_ts"]) == commit_ts
    }
    patience = patience or TimeBudget()
    began = _starts(_batches(log, window, commit_ts), patience)
    known = dict.fromkeys([*sorted({*began, *skipped}), *(ddl.start_ts for ddl in ddls)])
    view.start_ts = start_ts or next(iter(known), 0)
    view.others = tuple(other for other in known if other != view.start_ts)
    for ddl in ddls:
        if ddl.start_ts == view.start_ts:
            names = sorted(
                {full_name(schema, name) for _, schema, name in names_by_id(ddl.effect.tables)}
            )
            view.ddl = FoundDdl(
                commit_ts, action_name(ddl.type), ddl.query, tuple(names), ddl.type in REMOVES_ROWS
            )
    view.left_out = skipped.get(view.start_ts, "")
    if view.start_ts:
        _TransactionRows(log, window, view, table).read(offset, patience)
    if not (view.tables or view.ddl or view.left_out):
        which = f", started at {start_ts}" if start_ts else ""
        raise NoTransactionError(f"no transaction was committed at {tso.text(commit_ts)}{which}")
    return view


def _starts(batches: Iterable[pa.RecordBatch], patience: TimeBudget) -> set[int]:
    """Return when transactions in batches of one commit_ts began, as far as patience reaches."""
    found: set[int] = set()
    for batch in batches:
        found.update(batch["start_ts"].unique().to_pylist())
        if patience.over():
            break
    return found


def load_value(  # noqa: PLR0913 which value of which row
    past: HistoryLog, commit_ts: int, position: int, column: str, *, old: bool, start_ts: int = 0
) -> bytes | str | None:
    """Load a whole value of a row; bytes that are no text as they are.

    `start_ts`: of the transaction, 0 if there is only one. Raises NoTransactionError, relay errors.
    """
    log, window = _window(past, commit_ts)
    for batch in _batches(log, window, commit_ts, start_ts):
        found = batch.filter(pc.equal(batch["position"], position))
        if found.num_rows:
            raw = found.slice(0, 1).to_pylist()[0]
            table = SchemaTimeline.from_window(window).find(raw["table_id"], commit_ts)
            images = (
                _images(table, raw["kind"], raw["row"])[0 if old else 1]
                if table is not None
                else None
            )
            if images is not None and column in images.schema.names:
                return raw_value(images.column(column))
    raise NoTransactionError(f"the transaction at {tso.text(commit_ts)} has no such value")


def _window(past: HistoryLog, commit_ts: int) -> tuple[WindowLog, WindowRecord]:
    for stretch in past.ranges(commit_ts - 1, commit_ts):
        window = stretch.log.find(commit_ts - 1)
        if window is not None and window.lo < commit_ts:
            return stretch.log, window
    raise NoTransactionError(
        f"what was committed at {tso.text(commit_ts)} isn't kept: the past reaches from"
        f" {tso.text(past.first)} through {tso.text(past.last)}"
    )


def _batches(
    log: WindowLog, window: WindowRecord, commit_ts: int, start_ts: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield the changes at a commit_ts, only those with `start_ts` unless that is 0."""
    parts = [part for part in window.parts if part.min_commit_ts <= commit_ts <= part.max_commit_ts]
    for batch in iter_parts(log.storage, parts):
        found = batch.filter(pc.equal(batch["commit_ts"], commit_ts))
        if start_ts:
            found = found.filter(pc.equal(found["start_ts"], start_ts))
        if found.num_rows:
            yield found


class _TransactionRows:
    """The rows of a transaction, counted by table, and some of them decoded."""

    def __init__(
        self, log: WindowLog, window: WindowRecord, view: TransactionView, table: str
    ) -> None:
        self._log = log
        self._window = window
        self._view = view
        self._wanted = table
        self._tables = SchemaTimeline.from_window(window)
        self._counts: dict[str, list[int]] = {}
        self._channels: set[int] = set()
        self._remaining = MAX_ROWS_SHOWN

    def read(self, offset: int, patience: TimeBudget) -> None:
        """Read the transaction into the view."""
        view = self._view
        for batch in _batches(self._log, self._window, view.commit_ts, view.start_ts):
            if not view.complete:
                break
            offset = self._batch(batch, offset)
            view.complete = bool(self._remaining) or not patience.over()
        view.tables = [
            TableRows(name, inserts, updates, deletes)
            for name, (inserts, updates, deletes) in self._counts.items()
        ]
        view.channels = tuple(sorted(self._channels))

    def _batch(self, batch: pa.RecordBatch, offset: int) -> int:
        """Count the batch's rows, and return the number of rows still to be skipped."""
        ids, kinds = batch["table_id"].to_numpy(), batch["kind"].to_numpy()
        wanted = np.zeros(len(ids), bool)
        for table_id in dict.fromkeys(ids.tolist()):
            name = self._name(table_id)
            if is_internal_table(table_id):
                continue
            mine = ids == table_id
            counts = self._counts.setdefault(name, [0, 0, 0])
            for place, kind in enumerate((INSERT, UPDATE, DELETE)):
                counts[place] += int(np.count_nonzero(kinds[mine] == kind))
            table = self._tables.find(table_id, self._view.commit_ts)
            if table is not None and is_mark_table(table.schema_name, table.name):
                self._channels.update(_channels(table, batch.filter(pa.array(mine))))
            wanted |= mine & (not self._wanted or name == self._wanted)
        places = np.flatnonzero(wanted)
        for place in places[offset : offset + self._remaining].tolist():
            self._view.rows.append(self._row(batch.slice(place, 1).to_pylist()[0]))
            self._remaining -= 1
        return max(0, offset - len(places))

    def _name(self, table_id: int) -> str:
        table = self._tables.find(table_id, self._view.commit_ts)
        return table.full_name if table is not None else f"table id {table_id}"

    def _row(self, raw: dict[str, object]) -> ChangedRow:
        position, table_id, kind, row = (
            raw[name] for name in ("position", "table_id", "kind", "row")
        )
        assert isinstance(position, int) and isinstance(table_id, int) and isinstance(kind, int)
        assert isinstance(row, bytes)
        name, word = self._name(table_id), _KINDS.get(kind, f"kind {kind}")
        table = self._tables.find(table_id, self._view.commit_ts)
        if table is None:
            return ChangedRow(position, name, word, fault="its window doesn't describe this table")
        try:
            return ChangedRow(
                position, name, word, tuple(_values(table, *_images(table, kind, row)))
            )
        except ValueError as error:
            return ChangedRow(
                position, name, word, fault=f"{error}; {len(row)} bytes: {row[:64].hex()}"
            )


def _channels(marks: Table, changes: pa.RecordBatch) -> Iterator[int]:
    """Yield the channels that changes of the mark table have."""
    for raw in changes.to_pylist():
        with contextlib.suppress(ValueError):  # the row itself shows the fault
            for image in _images(marks, raw["kind"], raw["row"]):
                if image is not None and CHANNEL_COLUMN in image.schema.names:
                    yield int(image.column(CHANNEL_COLUMN)[0].as_py())


def _images(
    table: Table, kind: int, row: bytes
) -> tuple[pa.RecordBatch | None, pa.RecordBatch | None]:
    rows = pa.array([row], pa.large_binary())
    if kind == INSERT:
        return None, decode_inserts(table, rows)
    if kind == DELETE:
        return decode_deletes(table, rows), None
    return decode_updates(table, rows)


def _values(
    table: Table, old: pa.RecordBatch | None, new: pa.RecordBatch | None
) -> Iterator[ChangedValue]:
    image = new if new is not None else old
    assert image is not None
    kinds = {column.name: column.kind for column in table.columns}
    key = {column.name for column in lookup_key_columns(table)}
    for name in image.schema.names:
        before, after = (side.column(name) if side is not None else None for side in (old, new))
        changed = before is not None and after is not None and raw_value(before) != raw_value(after)
        yield ChangedValue(
            name, kinds.get(name, "int"), name in key, _shown(before), _shown(after), changed
        )


def _shown(array: pa.Array | None) -> DisplayValue | None:
    return None if array is None else display_value(array)
