"""Check what would stop this pipeline, or differ, if it took a Drainer's place now.

It reads from every party and writes nothing.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterable, Iterator

from sluice.errors import FAIL, OK, WARN, CheckResult, ours
from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.downstream import (
    Checkpoint,
    CheckpointError,
    DownstreamError,
    MySQLSession,
    engines_without_transactions,
)
from sluice.etl.downstream.ddl import create_table
from sluice.etl.downstream.ownership import (
    PipelineIdentity,
    describe_drainer,
    downstream_name,
    other_writers,
)
from sluice.etl.downstream.sinks import read_checkpoint
from sluice.etl.landing import NoCheckpointError, position_without_checkpoint, version_at
from sluice.etl.operate.takeover import seen_writing
from sluice.etl.settings import Downstream, Settings, Target, Upstream
from sluice.relay import RelayError
from sluice.tidb import (
    EtcdClient,
    EtcdError,
    NodeStatus,
    PDClient,
    PDError,
    Registry,
    RegistryError,
    TiKVClient,
    TiKVError,
    tso,
)
from sluice.tidb.compact_job_list import CompactJobList
from sluice.tidb.etcd.topology import PREFIX, WITHOUT_BINLOGS, parse_version
from sluice.tidb.history import SchemaHistory
from sluice.tidb.job import HistoryError
from sluice.tidb.schema import SchemaError, Table
from sluice.tidb.table_name import abbreviate
from sluice.tidb.tikv.meta import read_raw_ddl_jobs

_SEE_FIDELITY = "compare it with what you need: docs/reference/fidelity.md"
_REQUEST_TIMEOUT_S = 3.0
_TABLES = (
    "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE'"
)
_GC_TS = re.compile(r"^binlog_pump_storage_gc_ts (\S+)$", re.MULTILINE)


def check_takeover(settings: Settings) -> Iterator[CheckResult]:
    """Yield the results as they come. FAIL would stop a takeover.

    Never raises for what can't be reached: that is a result.
    """
    try:
        with (
            PDClient(settings.upstream.pd_urls, tls=settings.upstream.tls()) as pd,
            EtcdClient(settings.upstream.pd_urls, tls=settings.upstream.tls()) as etcd,
        ):
            yield CheckResult(
                "upstream", OK, f"cluster {pd.cluster_id} at {settings.upstream.pd_urls}"
            )
            registry = Registry(etcd)
            checkpoint: Checkpoint | None = None
            reached = isinstance(settings.target, Downstream)
            try:
                checkpoint = read_checkpoint(settings.target, pd.cluster_id)
                yield from _checkpoint(settings.target, settings.upstream, checkpoint, pd, registry)
            except (CheckpointError, DownstreamError, OSError) as error:
                reached = False
                yield CheckResult(
                    "downstream",
                    FAIL,
                    f"the checkpoint can't be read: {error}",
                    "`sluice grants` prints the rights that are needed",
                )
            drainers = registry.drainers()
            others = other_writers(
                PipelineIdentity.from_settings(settings),
                settings.upstream.unrelated_drainers,
                drainers,
            )
            yield from _nodes(others, registry, checkpoint)
            if reached:
                yield from (
                    CheckResult(
                        "downstream", FAIL, f"another writer: {seen}", "stop it, and check again"
                    )
                    for seen in seen_writing(settings, drainers)
                )
            yield from check_tidb_servers(etcd)
            yield from _relay(settings, pd.cluster_id, checkpoint)
            if reached:
                yield from _database(settings, pd, checkpoint)
    except (PDError, EtcdError, RegistryError) as error:
        yield CheckResult(
            "upstream",
            FAIL,
            f"{settings.upstream.pd_urls}: {error}",
            "see [upstream] pd-urls and ssl-ca, and whether PD runs",
        )


def _checkpoint(
    target: Target, upstream: Upstream, found: Checkpoint | None, pd: PDClient, registry: Registry
) -> Iterator[CheckResult]:
    where = downstream_name(target)
    if found is None:
        try:
            begin = position_without_checkpoint(
                where, upstream, pd.cluster_id, registry.drainers, pd.tso
            )
            yield CheckResult(
                "checkpoint",
                WARN,
                f"{where} has none; landing would begin at {tso.text(begin)}",
                "see that the downstream has all that was committed before",
            )
        except NoCheckpointError as error:
            yield CheckResult("checkpoint", FAIL, str(error), error.hint)
        return
    by = f"pipeline {found.owner}" if found.owner else "a Drainer"
    yield CheckResult(
        "checkpoint",
        OK,
        f"{where}: {tso.text(found.commit_ts)}, written by {by}, schema version"
        f" {found.schema_version}",
    )
    if found.needs_safe_mode:
        yield CheckResult(
            "checkpoint",
            WARN,
            "it is not consistent, as while a Drainer runs or after it was killed: changes after it"
            " are written in safe mode",
            "stop the Drainer with `sluice drainers pause`, and it is consistent",
        )
    if found.ts_map:
        yield CheckResult(
            "checkpoint",
            WARN,
            "its ts-map, which sync-diff-inspector reads, is removed with the first change: it is"
            " true of this checkpoint only",
            "compare with `sluice verify` afterwards",
        )


def _nodes(
    others: Iterable[NodeStatus], registry: Registry, checkpoint: Checkpoint | None
) -> Iterator[CheckResult]:
    for drainer in others:
        yield CheckResult(
            "drainers",
            FAIL,
            describe_drainer(drainer),
            "stop it, set it offline if it is gone, or name it in [upstream] unrelated-drainers",
        )
    pumps = [pump for pump in registry.pumps() if pump.state != "offline"]
    online = [pump for pump in pumps if pump.state == "online"]
    if not pumps:
        yield CheckResult("pumps", FAIL, "none is registered", "start one: `sluice pump --help`")
    if len(online) == 1:
        yield CheckResult(
            "pumps",
            WARN,
            f"only {online[0].node_id} is online: while it is replaced TiDB has none to write to,"
            " and stops",
            "start a second one before",
        )
    for pump in pumps:
        yield from _pump(pump, checkpoint)


def _pump(pump: NodeStatus, checkpoint: Checkpoint | None) -> Iterator[CheckResult]:
    try:
        found = _GC_TS.search(_get(pump.host, "/metrics").decode("utf-8", "replace"))
    except OSError as error:
        yield CheckResult(
            "pumps",
            WARN if pump.state == "online" else FAIL,
            f"{pump.node_id} at {pump.host}, {pump.state}, doesn't report what it holds: {error}",
            "start it, or set it offline if it is gone: `sluice pumps --help`",
        )
        return
    gc_ms = int(float(found[1])) if found else 0
    if checkpoint is not None and gc_ms > tso.physical_ms(checkpoint.commit_ts):
        yield CheckResult(
            "pumps",
            FAIL,
            f"{pump.node_id} has removed what was committed before {tso.text(tso.span(gc_ms))},"
            " which is after the checkpoint",
            "copy the downstream again: `sluice bootstrap`",
        )
    else:
        yield CheckResult(
            "pumps",
            OK,
            f"{pump.node_id} at {pump.host}: {pump.state}, through {pump.max_commit_ts}",
        )


def check_tidb_servers(etcd: EtcdClient) -> Iterator[CheckResult]:
    """Yield for each TiDB server its version and whether it writes binlogs. Raises EtcdError."""
    for item in etcd.range_prefix(PREFIX).items:
        address, _, what = item.key.removeprefix(PREFIX).rpartition("/")
        if what != "info":
            continue
        try:
            info = json.loads(item.value)
            port, version = int(info["status_port"]), str(info.get("version") or "")
            binlog = (
                json.loads(_get(f"{address.rpartition(':')[0]}:{port}", "/config")).get("binlog")
                or {}
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            yield CheckResult(
                "tidb",
                WARN,
                f"{address}: its settings can't be read: {error}",
                "see yourself that [binlog] enable is true and ignore-error false",
            )
            continue
        if parse_version(version) >= WITHOUT_BINLOGS:
            yield CheckResult(
                "tidb",
                FAIL,
                f"{address}: TiDB {version} writes no binlogs",
                "capture its changes from TiKV: docs/how-to/capture-from-tikv.md",
            )
        elif not binlog.get("enable"):
            yield CheckResult(
                "tidb",
                FAIL,
                f"{address}: [binlog] enable is false: what is written through it is in no binlog",
                "set it to true in TiDB's settings and restart TiDB",
            )
        elif binlog.get("ignore-error"):
            yield CheckResult(
                "tidb",
                WARN,
                f"{address}: [binlog] ignore-error is true: after one failed write it goes on"
                " without binlogs, and nothing shows what is missing",
                "set it to false in TiDB's settings and restart TiDB",
            )
        else:
            name = f"{address}, TiDB {version}," if version else address
            yield CheckResult("tidb", OK, f"{name} writes binlogs, and stops when it can't")


def _get(address: str, path: str) -> bytes:
    """Fetch a path over HTTP. Raises OSError."""
    connection = http.client.HTTPConnection(address, timeout=_REQUEST_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    except http.client.HTTPException as error:
        raise OSError(f"{address}{path}: {error!r}") from None
    finally:
        connection.close()


def _relay(
    settings: Settings, cluster_id: int, checkpoint: Checkpoint | None
) -> Iterator[CheckResult]:
    try:
        relay = settings.open_relay()
        first, stop = relay.first(), relay.stopped()
    except (RelayError, OSError) as error:
        yield CheckResult("relay log", FAIL, f"{settings.relay.url}: {error}", ours(error).hint)
        return
    if first is not None and first.cluster_id != cluster_id:
        yield CheckResult(
            "relay log",
            FAIL,
            f"{relay.url} belongs to cluster {first.cluster_id}",
            "give each cluster a relay log of its own: [relay] url",
        )
    elif first is not None and checkpoint is not None and first.lo > checkpoint.commit_ts:
        yield CheckResult(
            "relay log",
            FAIL,
            f"{relay.url} begins at {tso.text(first.lo)}, after the checkpoint",
            "begin a new one: [relay] url",
        )
    elif stop is not None:
        why = stop.why.removeprefix("applying was stopped: ")
        yield CheckResult(
            "relay log", WARN, f"applying was stopped: {why}", "`sluice takeover` lifts the stop"
        )
    else:
        yield CheckResult(
            "relay log",
            OK,
            f"{relay.url}: {'empty' if first is None else f'from {tso.text(first.lo)} on'}",
        )


def _database(
    settings: Settings, pd: PDClient, checkpoint: Checkpoint | None
) -> Iterator[CheckResult]:
    session = MySQLSession(settings.downstream)
    try:
        session.connect()  # looks at the version, the variables and the rights
        yield CheckResult(
            "downstream",
            OK,
            f"{session.address}: {session.dialect}; its variables and the user's rights suffice",
        )
        if checkpoint is not None:
            yield from _tables(settings, pd, checkpoint, session)
    except DownstreamError as error:
        yield CheckResult("downstream", FAIL, str(error), error.hint)
    finally:
        session.close()


def _tables(
    settings: Settings, pd: PDClient, checkpoint: Checkpoint, session: MySQLSession
) -> Iterator[CheckResult]:
    try:
        with TiKVClient(pd, tls=settings.upstream.tls()) as tikv:
            history = SchemaHistory()
            version = version_at(tikv, checkpoint.commit_ts)
            history.advance(
                CompactJobList.from_jobs(read_raw_ddl_jobs(tikv, pd.tso())).through(version),
                version,
            )
    except (TiKVError, HistoryError, SchemaError, PDError) as error:
        yield CheckResult(
            "schema", FAIL, f"it can't be read from TiKV at the checkpoint: {error}", error.hint
        )
        return
    wanted = [
        t
        for t in history.tables.values()
        if t.is_base_table and settings.filters.wants_table(t.schema_name, t.name)
    ]
    there = {(str(schema).lower(), str(name).lower()) for schema, name in session.query(_TABLES)}
    routed = ((t, settings.routes.target(t.schema_name, t.name)) for t in wanted)
    names = {t.id: (goal.schema, goal.table) for t, goal in routed}
    missing = [t for t in wanted if tuple(map(str.lower, names[t.id])) not in there]
    yield CheckResult(
        "tables",
        OK,
        f"{len(wanted)} are replicated, by the filters and the schema at the checkpoint",
    )
    yield from _check_tables(
        FAIL,
        missing,
        "are not downstream",
        "copy them as of the checkpoint, or leave them out with [filter]",
    )
    wide = [
        t
        for t in wanted
        if any(ord(c) > 0xFFFF for c in t.full_name + "".join(column.name for column in t.columns))
    ]
    yield from _check_tables(
        FAIL,
        wide,
        "have names that the downstream can't hold (characters beyond U+FFFF)",
        "rename them upstream, or leave them out with [filter]",
    )
    present = [t for t in wanted if t not in missing]
    engines = engines_without_transactions(session, [names[table.id] for table in present])
    for table, engine in zip(present, engines, strict=True):
        if engine:
            yield CheckResult(
                "tables",
                FAIL,
                f"{table.full_name} has the storage engine {engine} downstream, without"
                " transactions",
                "ALTER TABLE ... ENGINE = InnoDB",
            )
    if checkpoint.needs_safe_mode:
        keyless = [t for t in present if not lookup_key_columns(t)]
        yield from _check_tables(
            WARN,
            keyless,
            "have no key: if the Drainer wrote rows of them beyond its checkpoint, applying stops",
            "stop the Drainer with `sluice drainers pause` first, or repair them when it stops",
        )
    for table in wanted:
        yield from _check_definition(table, session)


def _check_definition(table: Table, session: MySQLSession) -> Iterator[CheckResult]:
    try:
        _, left_out = create_table(table, session.dialect)
    except ValueError as error:
        yield CheckResult("tables", WARN, f"{table.full_name}: {error}", _SEE_FIDELITY)
        return
    for text in left_out:
        yield CheckResult("tables", WARN, f"{table.full_name}: {text}", _SEE_FIDELITY)


def _check_tables(state: str, tables: list[Table], what: str, hint: str) -> Iterator[CheckResult]:
    if tables:
        names = sorted(table.full_name for table in tables)
        text = f"{len(names)} {what}: {abbreviate(names)}"
        yield CheckResult("tables", state, text, hint)


__all__ = ["check_takeover", "check_tidb_servers"]
