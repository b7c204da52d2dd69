"""Explain rows that differ because a transaction's binlog never came: TiKV knows the writer."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sluice.errors import SluiceError
from sluice.etl.history.find import NoTransactionError, load_transaction
from sluice.etl.history.history_log import HistoryLog
from sluice.etl.settings import Settings
from sluice.etl.verify.result import TableResult
from sluice.etl.verify.row_diff import RowDiff
from sluice.tidb import TiKVClient, tso
from sluice.tidb.codec import encode_int
from sluice.tidb.schema import Table
from sluice.tidb.table_name import first_of
from sluice.tidb.tikv import MvccWrite

__all__ = ["explain_missing"]

log = logging.getLogger("sluice.verify")

_PUT, _DELETE = 0, 1
_SEARCH_TIMEOUT_S = 10.0
"""Time for asking TiKV about the rows of a table."""
_MAX_NAMED = 50
_WHY = "of which no binlog has landed: it was lost with a pump's disk, or TiDB wrote none"


def explain_missing(
    settings: Settings, tikv: TiKVClient, result: TableResult, apart: RowDiff
) -> TableResult:
    """Add the lost transactions that wrote rows of `apart` last upstream to the result.

    They go to its notes and its examples. Lost: neither relay log nor archive has anything of them.
    Only TiKV's records of a table whose integer key is the handle are read, as far as a few seconds
    allow. A failure is no error.
    """
    if apart.table.handle_column is None:
        return result
    look = _LostTransactionSearch(tikv, apart.table, result.ts)
    try:
        look.rows(apart, HistoryLog.open(settings, shows_values=False))
    except (SluiceError, OSError) as error:
        log.warning(
            "what TiKV knows of the rows of %s that differ can't be read: %s", result.name, error
        )
    if not look.lost:
        return result
    name = apart.table.handle_column.name
    examples = tuple(
        replace(one, binlog=f"written upstream by the transaction that was {_text(write)}, {_WHY}")
        if (write := look.writes.get(_handle(one.key.get(name)))) is not None
        else one
        for one in result.examples
    )
    return replace(result, examples=examples, notes=(*result.notes, *look.notes()))


@dataclass(slots=True)
class _LostTransactionSearch:
    tikv: TiKVClient
    table: Table
    until: int
    writes: dict[int, MvccWrite] = field(default_factory=dict)
    """The lost transactions' writes, by handle."""
    lost: dict[tuple[int, int], MvccWrite] = field(default_factory=dict)
    """The lost transactions' writes, by commit_ts and start_ts."""
    landed: set[tuple[int, int]] = field(default_factory=set)
    asked: int = 0
    in_all: int = 0

    def rows(self, apart: RowDiff, past: HistoryLog) -> None:
        """Ask about each row, until the time is over."""
        over = time.monotonic() + _SEARCH_TIMEOUT_S
        handles = _handles(apart)
        self.in_all = len(handles)
        for handle in handles:
            if time.monotonic() > over:
                return
            self.asked += 1
            write = max(self._writes(handle), key=lambda one: one.commit_ts, default=None)
            if write is not None and self._is_lost(write, past):
                self.writes[handle] = write

    def _writes(self, handle: int) -> Iterator[MvccWrite]:
        partitions = (
            (self.table.partition or {}).get("definitions") if self.table.is_partitioned else None
        )
        for table_id in [int(each["id"]) for each in partitions or ()] or [self.table.id]:
            for write in self.tikv.mvcc_get(
                b"t" + encode_int(table_id) + b"_r" + encode_int(handle)
            ).writes:
                if write.kind in (_PUT, _DELETE) and write.commit_ts <= self.until:
                    yield write

    def _is_lost(self, write: MvccWrite, past: HistoryLog) -> bool:
        key = write.commit_ts, write.start_ts
        if key in self.lost:
            return True
        if write.commit_ts <= past.first or key in self.landed:
            return False
        try:
            load_transaction(past, write.commit_ts, start_ts=write.start_ts)
        except NoTransactionError:
            self.lost[key] = write
            return True
        self.landed.add(key)
        return False

    def notes(self) -> Iterator[str]:
        """Yield the notes for people."""
        if self.asked < self.in_all:
            yield f"TiKV was asked about {self.asked:,} of {self.in_all:,} rows that differ"
        found = [self.lost[key] for key in sorted(self.lost)]
        yield f"{len(found)} transactions wrote rows upstream {_WHY}"
        others = f"transactions, the last of them {_text(found[-1])}" if found else ""
        yield from first_of((f"lost: {_text(write)}" for write in found), _MAX_NAMED, others)


def _handles(apart: RowDiff) -> list[int]:
    """Return the handles of all rows that differ, ascending."""
    assert apart.table.handle_column is not None
    name = apart.table.handle_column.name
    return sorted(
        {_handle(value) for side in (apart.come, apart.gone) for value in side[name].to_pylist()}
    )


def _handle(value: object) -> int:
    """Return a handle as TiKV's keys have it: the 64 bits of an unsigned one, signed."""
    number = int(str(value))
    return number - (1 << 64) if number >= 1 << 63 else number


def _text(write: MvccWrite) -> str:
    return f"committed at {tso.text(write.commit_ts)}, begun at {write.start_ts}"
