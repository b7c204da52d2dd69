"""Compare the copied rows with TiDB's at the source's position: how many, table by table.

A dump whose files were emptied, or cut where a statement ends, looks whole. Its source is TiDB, so
TiDB is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sluice.etl.changes.formats.sql_text import quote_table
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.plan import CopyPlan
from sluice.etl.copy.selected_rows import where_sql
from sluice.etl.copy.tidb_session import TidbAddress, TidbSession
from sluice.etl.settings import Upstream
from sluice.tidb.table_name import abbreviate

__all__ = ["compare_with_tidb", "rows_by_table"]


def rows_by_table(plan: CopyPlan, there: Mapping[int, int]) -> dict[int, int]:
    """Return how many rows were copied of each table, by its place in the plan.

    `there`: rows by chunk.
    """
    found = dict.fromkeys(range(len(plan.tables)), 0)
    for number, rows in there.items():
        found[plan.of_table[number]] += rows
    return found


def compare_with_tidb(
    plan: CopyPlan,
    source: Mapping[str, Any],
    upstream: Upstream,
    copied: Mapping[int, int],
    doing: Callable[[str], None],
) -> str:
    """Compare the rows that were copied with those that TiDB had at the plan's position, by number.

    Return why that could not be done, "" if it was. `source`: from `Source.spec`. Raises CopyError
    if they differ.
    """
    if source["kind"] == "snapshot":
        return ""  # its manifest has the rows and the CRC-32C of each file, and these were compared
    try:
        counted = _count_upstream_rows(plan, _address(source, upstream), doing)
    except CopyError as error:
        return str(error)
    wrong = [
        f"{planned.table.full_name} ({copied[place]:,} rows copied, {counted[place]:,} in TiDB)"
        for place, planned in enumerate(plan.tables)
        if copied[place] != counted[place]
    ]
    if wrong:
        raise CopyError(
            f"the source doesn't hold what TiDB had at {plan.ts}: {abbreviate(wrong, 5)}",
            hint=(
                "its files are emptied or cut off: `sluice jobs cancel` gives this copy up; dump"
                " again, then start over"
            ),
        )
    return ""


def _address(source: Mapping[str, Any], upstream: Upstream) -> TidbAddress:
    return (
        TidbAddress.from_json(source["address"])
        if "address" in source
        else TidbAddress.from_settings(upstream)
    )


def _count_upstream_rows(
    plan: CopyPlan, address: TidbAddress, doing: Callable[[str], None]
) -> dict[int, int]:
    """Return how many rows each table had, by its place in the plan. Raises CopyError."""
    found: dict[int, int] = {}
    with TidbSession(address) as session:
        session.read_at(plan.ts)
        for place, planned in enumerate(plan.tables):
            doing(f"counting rows of {planned.table.full_name} in TiDB")
            ((rows,),) = session.query(
                f"SELECT COUNT(*) FROM {quote_table(planned.table)}"
                f" WHERE {where_sql(planned.table, planned.where)}"
            )
            found[place] = int(rows or 0)
    return found
