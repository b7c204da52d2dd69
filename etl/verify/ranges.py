"""Cut a table into ranges: several sessions compare it, and no read holds a server for long."""

from __future__ import annotations

from functools import partial

from sluice.etl.changes.formats.key_ranges import key_columns
from sluice.etl.verify.common_order import common_bounds, is_ordered_by_text, parts_of
from sluice.etl.verify.downstream_endpoint import DownstreamEndpoint
from sluice.etl.verify.endpoint import ComparedTable, KeyRange
from sluice.etl.verify.upstream_endpoint import UpstreamEndpoint

__all__ = ["ranges_of"]

RANGE_BYTES = 32 << 20
_MAX_RANGES = 10_000


def ranges_of(
    session: int, up: UpstreamEndpoint, down: DownstreamEndpoint, table: ComparedTable
) -> list[KeyRange]:
    """Return ranges that hold every row once.

    Nothing is counted: the bounds are those of TiDB's regions, or a key that is a number is cut
    evenly between its least and its greatest. Raises what the sides raise.
    """
    parts = min(table.bytes // RANGE_BYTES, _MAX_RANGES)
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
        return parts_of(KeyRange(), common_bounds(whole, *orders))
    if len(table.key) == 1 and table.key[0].kind == "int":
        return down.even_ranges(session, table, parts)
    return [KeyRange()]
