"""Verify restored tables: compare each, rows in whatever order, with what Spark computes.

Spark computes the state from snapshot and archive by other means than those that restored it. It is
also compared with TiDB as of the moment, if TiDB still has that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sluice.etl.copy import CopyError
from sluice.etl.copy.source import SourceChunk
from sluice.etl.copy.tidb_sql import TidbAddress, TidbSql
from sluice.etl.history.as_of import AsOfError, Fingerprint, fingerprint, tables_as_of
from sluice.etl.history.as_of.api import PlanExecutor
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader
from sluice.etl.history.snapshots.downstream_rows import DownstreamTable
from sluice.etl.restore.errors import RestoreMismatchError
from sluice.etl.restore.plan import RestorePlan, RestoreVerification
from sluice.etl.settings import Settings
from sluice.relay import SKIP
from sluice.relay.archive import Archive
from sluice.tidb.schema import Table
from sluice.tidb.table_name import abbreviate, exactly

__all__ = ["verify_restored"]

OnActivity = Callable[[str], None]
_MAX_SHOWN = 5


def verify_restored(
    settings: Settings,
    own: Settings,
    plan: RestorePlan,
    doing: OnActivity,
    run: PlanExecutor | None = None,
) -> RestoreVerification:
    """Compare the tables that were asked for.

    `run`: where the other state is computed, Spark unless something else is given; `doing` may
    raise what ends it. Raises VerifyError, which names the tables that differ; DownstreamError,
    SnapshotError, relay errors, SparkError.
    """
    notes: list[str] = []
    doing("computing what the tables were")
    expected = _expected_fingerprints(settings, plan, notes, run)
    found: dict[str, Fingerprint] = {}
    with ConsistentReader.open(own.downstream, plan.cluster_id, 1) as snapshot:
        for table in plan.asked:
            doing(f"verifying {table.full_name}")
            target = own.routes.target(table.schema_name, table.name)
            place = DownstreamTable(table, target.schema, target.table)
            found[table.full_name] = fingerprint(table, snapshot.rows(0, place))
    _compare(found, expected, "Spark computes from the archive")
    with_tidb = _fingerprints_of_tidb(settings, plan, notes, doing)
    _compare(found, with_tidb, "TiDB had then")
    rows = sum(found[name].rows for name in expected)
    return RestoreVerification(len(expected), rows, len(with_tidb), "; ".join(notes))


def _compare(
    found: Mapping[str, Fingerprint], expected: Mapping[str, Fingerprint], whose: str
) -> None:
    wrong = [
        f"{name} has {found[name]}, and {whose} {should}"
        for name, should in expected.items()
        if found[name] != should
    ]
    if wrong:
        shown = abbreviate(wrong, _MAX_SHOWN, separator="; ")
        raise RestoreMismatchError(f"restored tables differ: {shown}")


def _expected_fingerprints(
    settings: Settings, plan: RestorePlan, notes: list[str], run: PlanExecutor | None
) -> dict[str, Fingerprint]:
    """Return fingerprints by table, as far as they can be computed; note why others can't."""
    overrides = (
        Archive.open(settings.archive_url)
        .overrides_of(settings.open_relay().pipeline)
        .list(plan.since, plan.until)
    )
    ddls = {int(ddl.split(" ", 1)[0]) for ddl in plan.ddls}
    if decided := sorted(one.commit_ts for one in overrides if one.commit_ts in ddls):
        notes.append(
            f"not compared with what Spark computes: an override is about the DDL at {decided}"
        )
        return {}
    ignored = [one.named for one in overrides if one.action == SKIP]

    def computed(tables: Sequence[Table]) -> dict[str, Fingerprint]:
        names = [exactly(table.full_name) for table in tables]
        past = tables_as_of(settings, plan.until, names, ignored=ignored, run=run)
        wanted = {table.full_name for table in tables}
        return {name: found for name, found in past.fingerprints().items() if name in wanted}

    if not plan.asked:
        return {}
    try:
        return computed(plan.asked)
    except AsOfError:
        found: dict[str, Fingerprint] = {}
        for table in plan.asked:
            try:
                found |= computed([table])
            except AsOfError as error:
                notes.append(f"{table.full_name} isn't compared with what Spark computes: {error}")
        return found


def _fingerprints_of_tidb(
    settings: Settings, plan: RestorePlan, notes: list[str], doing: OnActivity
) -> dict[str, Fingerprint]:
    """Return TiDB's fingerprints by table if it can be asked as of then; note why not."""
    if not settings.upstream.sql_host:
        return {}
    source = TidbSql(TidbAddress.from_settings(settings.upstream), plan.until)
    found: dict[str, Fingerprint] = {}
    for table in plan.asked:
        doing(f"comparing {table.full_name} with TiDB")
        whole = SourceChunk(
            table.schema_name, table.name, 0, {"key_low": None, "key_high": None}, 0
        )
        try:
            found[table.full_name] = fingerprint(table, source.read(whole, table))
        except CopyError as error:
            notes.append(f"not compared with TiDB from {table.full_name} on: {error}")
            break
    return found
