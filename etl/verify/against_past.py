"""The half of a verification that needs no TiDB: the downstream against what Spark computes from base and archive."""

from __future__ import annotations

from collections.abc import Iterable

from etl.asof import Run as SparkRun
from etl.base.downstream_reader import DownstreamSnapshot, TableChanged
from etl.base.unchanged import ids_of
from etl.verify.differences import differences_of
from etl.verify.past import PastCompared, PastSide
from etl.verify.result import TableResult
from etl.verify.taking import EXAMPLES, Taking
from relay.jobs import Done, TableProgress
from upstream.table_name import full_name

__all__ = ["compare_with_past"]


def compare_with_past(
    taking: Taking, snapshot: DownstreamSnapshot, names: Iterable[str], spark: SparkRun | None
) -> dict[str, str]:
    """Compare tables; those that a DDL has changed meanwhile, and why. Raises Ordered, and what both sides raise."""
    settings = taking.place.settings
    side = PastSide(settings, taking.ts, spark)
    opened = side.open(frozenset(names).__contains__)
    taking.notes |= dict.fromkeys(side.notes)
    for name, why in side.unknown.items():
        taking.leave_out(name, why)
    taking.run.begin_with({name: TableProgress(chunks_in_all=1) for one in opened for name in one.tables})
    changed: dict[str, str] = {}
    for past in opened:
        try:
            for one in past.compare(snapshot, taking.doing):
                taking.did(one.table.full_name, Done(one.rows, one.bytes, 1))
                _take(taking, one, changed)
        except TableChanged as error:
            changed |= {name: str(error) for name in past.tables if name not in taking.results}
    return changed


def _take(taking: Taking, one: PastCompared, changed: dict[str, str]) -> None:
    differences = one.apart.count if one.apart is not None else 0
    if differences or one.more_parts:
        reached, touched = taking.place.ddl_since(taking.ts)
        if touched is None or any(touched & ids_of(table) for table in (one.table, *one.others)):
            changed[one.table.full_name] = f"DDL was committed between {taking.ts} and {reached}"
            return
    target = taking.place.settings.routes.target(one.table.schema_name, one.table.name)
    result = TableResult(
        one.table.full_name, full_name(target.schema, target.table), taking.ts, one.rows, one.bytes, differences,
        one.more_parts, one.rows, tuple(differences_of(one.apart, EXAMPLES)) if one.apart is not None else (),
    )  # fmt: skip
    taking.take_differing(result, one.apart if differences else None)
    taking.take_merged(one.table, one.others, result)
