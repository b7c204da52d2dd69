"""Where a table is cut, so that several sessions compare it at a time and none holds a server for long."""

from __future__ import annotations

from functools import partial

from etl.formats.key_ranges import key_columns
from etl.verify.common_order import in_common, is_ordered_by_text, parts_of
from etl.verify.downstream_side import DownstreamSide
from etl.verify.side import ComparedTable, KeyRange
from etl.verify.upstream_side import UpstreamSide

__all__ = ["ranges_of"]

RANGE_BYTES = 32 << 20
_MOST_RANGES = 10_000


def ranges_of(session: int, up: UpstreamSide, down: DownstreamSide, table: ComparedTable) -> list[KeyRange]:
    """Ranges that hold every row once. Nothing is counted: TiDB says where regions begin, or a key that is a number is
    cut evenly between its least and its greatest. Raises what the sides raise.
    """
    parts = min(table.bytes // RANGE_BYTES, _MOST_RANGES)
    if parts < 2 or not table.key:
        return [KeyRange()]
    kept_by = key_columns(table.table)
    if (
        not table.others
        and table.table.handle_kind != "heap"
        and [one.name for one in kept_by] == [one.name for one in table.key]
    ):
        if not is_ordered_by_text(table):
            return up.ranges(table)
        starts = [within.low for within in up.ranges(table) if within.low is not None]
        whole = [bound for bound in starts if len(bound) == len(table.key)]
        orders = (partial(up.in_order, session, table), partial(down.in_order, session, table))
        return parts_of(KeyRange(), in_common(whole, *orders))
    if len(table.key) == 1 and table.key[0].kind == "int":
        return down.even_ranges(session, table, parts)
    return [KeyRange()]
