"""Hold the changes between two barriers, which a write planner turns into steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.etl.changes.messages import MessageFormat
from sluice.etl.changes.steps import Step
from sluice.tidb.schema import Table


@dataclass(slots=True)
class StageTimings:
    """Seconds by stage."""

    read: float = 0.0
    decode: float = 0.0
    reduce: float = 0.0
    format: float = 0.0

    def to_ms(self) -> dict[str, float]:
        """Return milliseconds by stage."""
        return {
            name: round(getattr(self, name) * 1000, 3)
            for name in ("read", "decode", "reduce", "format")
        }

    def clear(self) -> None:
        """Start again from zero."""
        self.read = self.decode = self.reduce = self.format = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSet:
    """Every change that is replicated between two barriers, from one or more windows."""

    changes: pa.Table
    """The changes in the relay log's PART_SCHEMA, one chunk, ascending by (commit_ts, position)."""
    tables: tuple[tuple[Table, np.ndarray], ...]
    """Each table with the places (int64, ascending) of its changes in `changes`.

    Filtered changes are in none.
    """
    after: int
    """The commit timestamp behind which the change set begins."""
    through: int
    """The commit ts of the change set's end: its commit step moves the checkpoint there."""
    safe: bool = False
    """Safe mode: these changes, and later ones, may be downstream in part.

    The steps must lead to the right rows all the same.
    """
    time_zone: str = "UTC"
    """The zone of TIMESTAMPs, for planners that write them as text without a zone."""
    message_format: MessageFormat = field(default_factory=MessageFormat)
    """The format of messages, for the planner `kafka_messages`."""
    partial: frozenset[int] = frozenset()
    """Ids of tables that weren't downstream what they were upstream before.

    The event filter leaves some kinds of their changes out, or rows are missing that a job is
    about to bring.
    """
    sources: Mapping[int, str] = field(default_factory=dict)
    """The upstream's name of each table that is merged downstream, by id."""
    left_out: tuple[int, ...] = ()
    """Commit timestamps of the transactions inside that are ignored."""
    replayed: bool = False
    """An in-flight batch that was interrupted.

    In tables whose rows are found by a key any part may be downstream. Any image of a row that is
    there is removed, and the last image is written; no other row may be in the way.
    """
    contested: bool = False
    """Set if the downstream's applications may have changed the same rows.

    Rows are written as if replayed: a row that is in the way by another key is an error. Changes of
    a row need not follow one another, as some of them may have lost.
    """
    channel: int | None = None
    """The channel that its transactions are marked with; None: the downstream session's."""
    reverted: Mapping[int, pa.Table] = field(default_factory=dict)
    """Changes (PART_SCHEMA) of ignored transactions that may be downstream, by table id."""

    _columns: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def all_rows(self) -> pa.LargeBinaryArray:
        """Return the encoded rows."""
        if "row" not in self._columns:
            rows = self.changes["row"]
            self._columns["row"] = (
                rows.chunk(0) if rows.num_chunks else pa.array([], pa.large_binary())
            )
        return self._columns["row"]

    def rows_of(self, places: np.ndarray) -> pa.LargeBinaryArray:
        """Return the encoded rows at these places."""
        if not len(places):
            return pa.array([], pa.large_binary())
        rows = self.changes["row"].chunk(0)
        return rows if len(places) == len(rows) else rows.take(pa.array(places))

    def column(self, name: str, places: np.ndarray) -> np.ndarray:
        """Return an integer column at these places."""
        values: np.ndarray = self._all(name)[places]
        return values

    def _all(self, name: str) -> np.ndarray:
        if name not in self._columns:
            self._columns[name] = self.changes[name].to_numpy()
        values: np.ndarray = self._columns[name]
        return values

    @property
    def encoded(self) -> tuple[pa.Buffer, memoryview] | None:
        """Return what the encoded rows lie in, and where each begins and ends (int64).

        None if one is lacking.
        """
        if "encoded" not in self._columns:
            rows = self.all_rows
            _, offsets, data = rows.buffers()
            begins = memoryview(offsets)[8 * rows.offset : 8 * (rows.offset + len(rows) + 1)]
            whole = pa.py_buffer(b"") if data is None else data
            self._columns["encoded"] = None if rows.null_count else (whole, begins)
        found: tuple[pa.Buffer, memoryview] | None = self._columns["encoded"]
        return found

    def commit_ts(self, place: int) -> int:
        """Return the commit ts of the change at a place."""
        return int(self._all("commit_ts")[place])

    def needs_lenient_writes(self, table_id: int) -> bool:
        """Return whether a table's rows may differ from the upstream's before the changes.

        They may also meet others'.
        """
        return (
            self.safe
            or self.replayed
            or self.contested
            or table_id in self.partial
            or table_id in self.sources
            or table_id in self.reverted
        )


WritePlanner = Callable[[ChangeSet, StageTimings, int], Iterator[Step]]
"""Yields a change set's steps for so many workers, all but the commit that ends it.

Raises ChangeError and the row codec's errors.
"""
