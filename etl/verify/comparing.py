"""A range of a table on both sides: the servers' checksums, and where they differ the rows.

What differs is cut into parts until few rows are left; these are read from both sides and compared here, byte for byte.
So it is this comparison that says that a row differs: sums that differ for another reason, because two servers print a
value in two ways, say nothing but that rows must be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from etl.asof.parted import PartSums, rows_within
from etl.verify.checksum import Checksum
from etl.verify.common_order import in_common, is_ordered_by_text, parts_of
from etl.verify.downstream_side import DownstreamSide
from etl.verify.rows_apart import LIVE_ZEROS, Apart, apart, as_table
from etl.verify.side import ComparedTable, KeyRange, Side
from upstream.schema import Table

__all__ = ["Comparing", "RangeCompared", "settled"]

READ_ROWS = 10_000
"""So few rows are read rather than cut further."""
_PARTS = 16
HELD_ROWS = 200_000
"""Of more rows only sums are held at first."""
_SUMS = 4096
MOST_APART = 20_000
"""When so many rows differ in a table, it isn't looked for more of them."""


@dataclass(frozen=True, slots=True)
class RangeCompared:
    """`rows`: how many the downstream has in the range; `apart`: those that aren't the same, None if all are;
    `by_rows`: how many were read and compared here; `more`: in so many more parts rows differ, which weren't looked at.
    """

    rows: int
    apart: Apart | None = None
    by_rows: int = 0
    more: int = 0

    def __add__(self, other: RangeCompared) -> RangeCompared:
        both = [one for one in (self.apart, other.apart) if one is not None]
        found = both[0] + both[1] if len(both) == 2 else both[0] if both else None
        return RangeCompared(
            self.rows + other.rows, found, self.by_rows + other.by_rows, self.more + other.more
        )  # fmt: skip

    @property
    def is_full(self) -> bool:
        """Whether so many rows differ that no more are looked for."""
        return self.apart is not None and self.apart.come.num_rows + self.apart.gone.num_rows >= MOST_APART


class Comparing:
    """Both sides, read by several threads, each over a session of its own. Methods raise what the sides raise."""

    def __init__(self, up: Side, down: DownstreamSide) -> None:
        self._up, self._down = up, down

    def compare(self, session: int, table: ComparedTable, within: KeyRange) -> RangeCompared:
        """All rows of a range."""
        sums = self._sums(session, table, within)
        if sums is None:
            return self._by_rows(session, table, within)
        if sums[0] == sums[1]:
            return RangeCompared(sums[1].rows)
        return replace(self._look(session, table, within, sums), rows=sums[1].rows)

    def _sums(self, session: int, table: ComparedTable, within: KeyRange) -> tuple[Checksum, Checksum] | None:
        """The upstream's and the downstream's."""
        up = self._up.checksum(session, table, within)
        down = self._down.checksum(session, table, within) if up is not None else None
        return None if up is None or down is None else (up, down)

    def _look(
        self, session: int, table: ComparedTable, within: KeyRange, sums: tuple[Checksum, Checksum]
    ) -> RangeCompared:
        """For the rows that differ in a range that isn't the same."""
        most = max(sum_.rows for sum_ in sums)
        if most <= READ_ROWS or not table.key or not sums[1].rows:
            return self._by_rows(session, table, within)
        parts = self._cut(session, table, within, max(sums[1].rows // _PARTS, 1))
        if len(parts) < 2:
            return self._by_rows(session, table, within)
        found = RangeCompared(0)
        for part in parts:
            of_part = self._sums(session, table, part)
            assert of_part is not None
            if of_part[0] == of_part[1]:
                continue
            if found.is_full:
                found = replace(found, more=found.more + 1)
            elif max(of_part[0].rows, of_part[1].rows) == most:  # the cut was none: all rows are in one part
                found += self._by_rows(session, table, part)
            else:
                found += self._look(session, table, part, of_part)
        return found

    def _cut(self, session: int, table: ComparedTable, within: KeyRange, step: int) -> list[KeyRange]:
        """The range in parts of about `step` rows, each of which means something to both servers."""
        parts = self._down.cut(session, table, within, step)
        if not is_ordered_by_text(table):
            return parts
        bounds = [part.low for part in parts[1:] if part.low is not None]
        ends = [bound for bound in (within.low, within.high) if bound is not None]
        inside = self._up.in_order(session, table, [*bounds, *ends]) if bounds else []
        first = inside.index(within.low) + 1 if within.low in inside else 0
        last = inside.index(within.high) if within.high in inside else len(inside)
        if any(end not in inside for end in ends):
            return [within]  # a row that is gone since tells no order
        kept = inside[first:last]
        return parts_of(within, in_common([bound for bound in bounds if bound in kept], lambda _: kept))

    def whole(self, session: int, table: ComparedTable) -> RangeCompared:
        """All rows of a table at once: read, and dealt by their keys' bytes, whatever order servers have."""
        return self._by_rows(session, table, KeyRange())

    def _by_rows(self, session: int, table: ComparedTable, within: KeyRange) -> RangeCompared:
        """Rows are read from both sides, twice if there are many: first for sums of parts, then those of the parts that
        differ.
        """
        few = self._few(session, table, within)
        if few is not None:
            return _compared(table, *few, by_rows=few[1].num_rows)
        ours, theirs = PartSums(_SUMS), PartSums(_SUMS)
        for side, sums in ((self._up, ours), (self._down, theirs)):
            for batch in side.rows(session, table, within):
                sums.add(table.table, batch)
        differing = ours.differing(theirs)
        if not differing:
            return RangeCompared(theirs.rows, by_rows=theirs.rows)
        wanted = differing[: max(MOST_APART * _SUMS // max(ours.rows, theirs.rows, 1), 1)]
        up, down = (
            as_table(
                table.table,
                [
                    part
                    for batch in side.rows(session, table, within)
                    for part in rows_within(table.table, batch, _SUMS, wanted).to_batches()
                ],
            )
            for side in (self._up, self._down)
        )
        found = _compared(table, up, down, by_rows=theirs.rows)
        return replace(found, rows=theirs.rows, more=len(differing) - len(wanted))

    def _few(self, session: int, table: ComparedTable, within: KeyRange) -> tuple[pa.Table, pa.Table] | None:
        """The rows of both sides, None if they are too many to be held."""
        up = _held(table.table, self._up.rows(session, table, within), to_the_end=False)
        if up is None:
            return None
        # A result that isn't read to its end costs the session, and with it the downstream's snapshot.
        down = _held(table.table, self._down.rows(session, table, within), to_the_end=True)
        return None if down is None else (up, down)


def settled(table: ComparedTable, found: RangeCompared) -> RangeCompared:
    """All ranges of a table together: a row that is in one range here and in another there, because servers order text
    in two ways, is the same row.
    """
    if found.apart is None:
        return found
    left = apart(table.table, found.apart.come, found.apart.gone, LIVE_ZEROS)
    return replace(found, apart=left if left.count else None)


def _held(table: Table, batches: Iterator[pa.RecordBatch], *, to_the_end: bool) -> pa.Table | None:
    """Rows as they are read, None if they are too many to be held; `to_the_end`: read all the same."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        if rows <= HELD_ROWS:
            held.append(batch)
        elif to_the_end:
            held.clear()
        else:
            return None
    return as_table(table, held) if rows <= HELD_ROWS else None


def _compared(table: ComparedTable, up: pa.Table, down: pa.Table, *, by_rows: int) -> RangeCompared:
    found = apart(table.table, up, down, LIVE_ZEROS)
    return RangeCompared(down.num_rows, found if found.count else None, by_rows)
