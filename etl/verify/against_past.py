"""Compare the downstream with what Spark computes from snapshot and archive, without TiDB."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.etl.history.as_of import PlanExecutor
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader, TableChanged
from sluice.etl.history.snapshots.reuse import ids_of
from sluice.etl.verify.archive_endpoint import ArchiveComparison, ArchiveEndpoint
from sluice.etl.verify.differences import differences_of
from sluice.etl.verify.result import TableResult
from sluice.etl.verify.result_collector import MAX_EXAMPLES, ResultCollector
from sluice.relay.jobs import JobCounts, TableProgress
from sluice.tidb.table_name import full_name

__all__ = ["compare_with_archive"]


def compare_with_archive(
    taking: ResultCollector,
    snapshot: ConsistentReader,
    names: Iterable[str],
    spark: PlanExecutor | None,
) -> dict[str, str]:
    """Compare tables; return those that a DDL has changed meanwhile, and why.

    Raises StopRequested, and what both sides raise.
    """
    settings = taking.place.settings
    side = ArchiveEndpoint(settings, taking.ts, spark)
    opened = side.open(frozenset(names).__contains__)
    taking.notes |= dict.fromkeys(side.notes)
    for name, why in side.unknown.items():
        taking.exclude(name, why)
    taking.run.set_totals(
        {name: TableProgress(chunks_in_all=1) for one in opened for name in one.tables}
    )
    changed: dict[str, str] = {}
    for past in opened:
        try:
            for one in past.compare(snapshot, taking.doing):
                taking.did(one.table.full_name, JobCounts(one.rows, one.bytes, 1))
                _take_result(taking, one, changed)
        except TableChanged as error:
            changed |= {name: str(error) for name in past.tables if name not in taking.results}
    return changed


def _take_result(taking: ResultCollector, one: ArchiveComparison, changed: dict[str, str]) -> None:
    differences = one.apart.count if one.apart is not None else 0
    if differences or one.more_parts:
        reached, touched = taking.place.ddl_since(taking.ts)
        if touched is None or any(touched & ids_of(table) for table in (one.table, *one.others)):
            changed[one.table.full_name] = f"DDL was committed between {taking.ts} and {reached}"
            return
    target = taking.place.settings.routes.target(one.table.schema_name, one.table.name)
    result = TableResult(
        one.table.full_name,
        full_name(target.schema, target.table),
        taking.ts,
        one.rows,
        one.bytes,
        differences,
        one.more_parts,
        one.rows,
        tuple(differences_of(one.apart, MAX_EXAMPLES)) if one.apart is not None else (),
    )
    taking.add_differing(result, one.apart if differences else None)
    taking.add_merged(one.table, one.others, result)
