"""Compare a range of a table on both sides: the servers' checksums, and if they differ the rows.

A range that differs is cut into parts until few rows are left; these are read from both sides and
compared here, byte for byte. So only this comparison decides that a row differs. Sums that differ
for another reason, because two servers print a value in two ways, only cause rows to be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from sluice.etl.history.as_of.hash_partitions import PartSums, rows_of_parts
from sluice.etl.verify.checksum import Checksum
from sluice.etl.verify.common_order import common_bounds, is_ordered_by_text, parts_of
from sluice.etl.verify.downstream_endpoint import DownstreamEndpoint
from sluice.etl.verify.endpoint import ComparedTable, KeyRange, VerifyEndpoint
from sluice.etl.verify.row_diff import LIVE_ZERO_KINDS, RowDiff, as_table, diff_rows
from sluice.tidb.schema import Table

__all__ = ["RangeComparer", "RangeComparison", "merge_ranges"]

ROWS_PER_READ = 10_000
"""Maximum rows of a range that is read rather than cut further."""
_SPLIT_PARTS = 16
MAX_HELD_ROWS = 200_000
"""Maximum rows held in memory; of a larger range only sums are held at first."""
_MAX_CHECKSUMS = 4096
MAX_DIFFERING_ROWS = 20_000
"""Maximum differing rows of a table that are searched for."""


@dataclass(frozen=True, slots=True)
class RangeComparison:
    """The outcome for a range; `rows`: how many the downstream has in it.

    `diff_rows`: those that aren't the same, None if all are; `by_rows`: how many were read and
    compared here; `more`: the number of further parts in which rows differ, and which weren't read.
    """

    rows: int
    apart: RowDiff | None = None
    by_rows: int = 0
    more: int = 0

    def __add__(self, other: RangeComparison) -> RangeComparison:
        both = [one for one in (self.apart, other.apart) if one is not None]
        found = both[0] + both[1] if len(both) == 2 else both[0] if both else None
        return RangeComparison(
            self.rows + other.rows, found, self.by_rows + other.by_rows, self.more + other.more
        )  # fmt: skip

    @property
    def is_full(self) -> bool:
        """Return whether enough rows differ that no more are looked for."""
        return (
            self.apart is not None
            and self.apart.come.num_rows + self.apart.gone.num_rows >= MAX_DIFFERING_ROWS
        )


class RangeComparer:
    """Both sides, read by several threads, each over a session of its own.

    Methods raise what the sides raise.
    """

    def __init__(self, up: VerifyEndpoint, down: DownstreamEndpoint) -> None:
        self._up, self._down = up, down

    def compare(self, session: int, table: ComparedTable, within: KeyRange) -> RangeComparison:
        """Return all rows of a range."""
        sums = self._sums(session, table, within)
        if sums is None:
            return self._by_rows(session, table, within)
        if sums[0] == sums[1]:
            return RangeComparison(sums[1].rows)
        return replace(self._look(session, table, within, sums), rows=sums[1].rows)

    def _sums(
        self, session: int, table: ComparedTable, within: KeyRange
    ) -> tuple[Checksum, Checksum] | None:
        """Return the upstream's and the downstream's checksum."""
        up = self._up.checksum(session, table, within)
        down = self._down.checksum(session, table, within) if up is not None else None
        return None if up is None or down is None else (up, down)

    def _look(
        self, session: int, table: ComparedTable, within: KeyRange, sums: tuple[Checksum, Checksum]
    ) -> RangeComparison:
        """Find the rows that differ in a range whose checksums differ."""
        most = max(sum_.rows for sum_ in sums)
        if most <= ROWS_PER_READ or not table.key or not sums[1].rows:
            return self._by_rows(session, table, within)
        parts = self._cut(session, table, within, max(sums[1].rows // _SPLIT_PARTS, 1))
        if len(parts) < 2:
            return self._by_rows(session, table, within)
        found = RangeComparison(0)
        for part in parts:
            of_part = self._sums(session, table, part)
            assert of_part is not None
            if of_part[0] == of_part[1]:
                continue
            if found.is_full:
                found = replace(found, more=found.more + 1)
            elif (
                max(of_part[0].rows, of_part[1].rows) == most
            ):  # the cut was none: all rows are in one part
                found += self._by_rows(session, table, part)
            else:
                found += self._look(session, table, part, of_part)
        return found

    def _cut(
        self, session: int, table: ComparedTable, within: KeyRange, step: int
    ) -> list[KeyRange]:
        """Cut the range into parts of about `step` rows whose bounds both servers order alike."""
        parts = self._down.cut(session, table, within, step)
        if not is_ordered_by_text(table):
            return parts
        bounds = [part.low for part in parts[1:] if part.low is not None]
        ends = [bound for bound in (within.low, within.high) if bound is not None]
        inside = self._up.in_order(session, table, [*bounds, *ends]) if bounds else []
        first = inside.index(within.low) + 1 if within.low in inside else 0
        last = inside.index(within.high) if within.high in inside else len(inside)
        if any(end not in inside for end in ends):
            return [within]  # a row that is gone since has no place in the order
        kept = inside[first:last]
        return parts_of(
            within, common_bounds([bound for bound in bounds if bound in kept], lambda _: kept)
        )

    def whole(self, session: int, table: ComparedTable) -> RangeComparison:
        """Compare all rows of a table at once.

        They are read, and distributed by their keys' bytes, whatever order servers have.
        """
        return self._by_rows(session, table, KeyRange())

    def _by_rows(self, session: int, table: ComparedTable, within: KeyRange) -> RangeComparison:
        """Compare rows read from both sides.

        They are read twice if there are many: first for sums of parts, then those of the parts that
        differ.
        """
        few = self._diff_small(session, table, within)
        if few is not None:
            return _compare_rows(table, *few, by_rows=few[1].num_rows)
        ours, theirs = PartSums(_MAX_CHECKSUMS), PartSums(_MAX_CHECKSUMS)
        for side, sums in ((self._up, ours), (self._down, theirs)):
            for batch in side.rows(session, table, within):
                sums.add(table.table, batch)
        differing = ours.differing(theirs)
        if not differing:
            return RangeComparison(theirs.rows, by_rows=theirs.rows)
        wanted = differing[
            : max(MAX_DIFFERING_ROWS * _MAX_CHECKSUMS // max(ours.rows, theirs.rows, 1), 1)
        ]
        up, down = (
            as_table(
                table.table,
                [
                    part
                    for batch in side.rows(session, table, within)
                    for part in rows_of_parts(
                        table.table, batch, _MAX_CHECKSUMS, wanted
                    ).to_batches()
                ],
            )
            for side in (self._up, self._down)
        )
        found = _compare_rows(table, up, down, by_rows=theirs.rows)
        return replace(found, rows=theirs.rows, more=len(differing) - len(wanted))

    def _diff_small(
        self, session: int, table: ComparedTable, within: KeyRange
    ) -> tuple[pa.Table, pa.Table] | None:
        """Return the rows of both sides, None if they are too many to be held."""
        up = _read_rows(table.table, self._up.rows(session, table, within), to_the_end=False)
        if up is None:
            return None
        # A result that isn't read to its end costs the session, and with it the downstream's
        # snapshot.
        down = _read_rows(table.table, self._down.rows(session, table, within), to_the_end=True)
        return None if down is None else (up, down)


def merge_ranges(table: ComparedTable, found: RangeComparison) -> RangeComparison:
    """Merge the outcomes of all ranges of a table.

    A row that is in one range here and in another there, because servers order text in two ways, is
    the same row.
    """
    if found.apart is None:
        return found
    left = diff_rows(table.table, found.apart.come, found.apart.gone, LIVE_ZERO_KINDS)
    return replace(found, apart=left if left.count else None)


def _read_rows(
    table: Table, batches: Iterator[pa.RecordBatch], *, to_the_end: bool
) -> pa.Table | None:
    """Return rows as they are read, None if they are too many to be held.

    `to_the_end`: read all the same.
    """
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        if rows <= MAX_HELD_ROWS:
            held.append(batch)
        elif to_the_end:
            held.clear()
        else:
            return None
    return as_table(table, held) if rows <= MAX_HELD_ROWS else None


def _compare_rows(
    table: ComparedTable, up: pa.Table, down: pa.Table, *, by_rows: int
) -> RangeComparison:
    found = diff_rows(table.table, up, down, LIVE_ZERO_KINDS)
    return RangeComparison(down.num_rows, found if found.count else None, by_rows)
