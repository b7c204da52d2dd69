"""Check what would stop this pipeline, or differ, if it took a Drainer's place now.

It reads from every party and writes nothing.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
from sluice.tidb.etcd.topology import PREFIX
from sluice.tidb.history import SchemaHistory
from sluice.tidb.job import HistoryError
from sluice.tidb.schema import SchemaError, Table
from sluice.tidb.tikv.meta import read_raw_ddl_jobs

OK, DIFFERS, STOPS = "ok", "differs", "stops"
_MAX_SHOWN = 10
_REQUEST_TIMEOUT_S = 3.0
_TABLES = (
    "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE'"
)
_GC_TS = re.compile(r"^binlog_pump_storage_gc_ts (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of the check.

    `kind`: OK, DIFFERS (the downstream will not be quite the same, or an operator should look) or
    STOPS.
    """

    kind: str
    text: str


def check_takeover(settings: Settings) -> Iterator[Finding]:
    """Yield the findings as they come.

    Never raises for what can't be reached: that is a finding.
    """
    try:
        with (
            PDClient(settings.upstream.pd_urls, tls=settings.upstream.tls()) as pd,
            EtcdClient(settings.upstream.pd_urls, tls=settings.upstream.tls()) as etcd,
        ):
            yield Finding(OK, f"upstream: cluster {pd.cluster_id} at {settings.upstream.pd_urls}")
            registry = Registry(etcd)
            checkpoint: Checkpoint | None = None
            reached = isinstance(settings.target, Downstream)
            try:
                checkpoint = read_checkpoint(settings.target, pd.cluster_id)
                yield from _checkpoint(settings.target, settings.upstream, checkpoint, pd, registry)
            except (CheckpointError, DownstreamError, OSError) as error:
                reached = False
                yield Finding(STOPS, f"downstream: the checkpoint can't be read: {error}")
            drainers = registry.drainers()
            others = other_writers(
                PipelineIdentity.from_settings(settings),
                settings.upstream.unrelated_drainers,
                drainers,
            )
            yield from _nodes(others, registry, checkpoint)
            if reached:
                yield from (
                    Finding(STOPS, f"another writer: {seen}")
                    for seen in seen_writing(settings, drainers)
                )
            yield from tidb_server_findings(etcd)
            yield from _relay(settings, pd.cluster_id, checkpoint)
            if reached:
                yield from _database(settings, pd, checkpoint)
    except (PDError, EtcdError, RegistryError) as error:
        yield Finding(STOPS, f"upstream: {settings.upstream.pd_urls}: {error}")


def _checkpoint(
    target: Target, upstream: Upstream, found: Checkpoint | None, pd: PDClient, registry: Registry
) -> Iterator[Finding]:
    where = downstream_name(target)
    if found is None:
        try:
            begin = position_without_checkpoint(
                where, upstream, pd.cluster_id, registry.drainers, pd.tso
            )
            yield Finding(
                DIFFERS,
                f"{where}: no checkpoint; landing would begin at {tso.text(begin)}",
            )
        except NoCheckpointError as error:
            yield Finding(STOPS, str(error))
        return
    by = f"pipeline {found.owner}" if found.owner else "a Drainer"
    yield Finding(
        OK,
        f"{where}: checkpoint {tso.text(found.commit_ts)}, written by {by}, schema version"
        f" {found.schema_version}",
    )
    if found.needs_safe_mode:
        yield Finding(
            DIFFERS,
            "checkpoint: not consistent, as while a Drainer runs or after it was killed: changes"
            " after it are written in safe mode. Stop the Drainer with `sluice drainers pause`, and"
            " it is consistent",
        )
    if found.ts_map:
        yield Finding(
            DIFFERS,
            "checkpoint: its ts-map, which sync-diff-inspector reads, is removed with the first"
            " change: it is true of this checkpoint only",
        )


def _nodes(
    others: Iterable[NodeStatus], registry: Registry, checkpoint: Checkpoint | None
) -> Iterator[Finding]:
    for drainer in others:
        yield Finding(
            STOPS,
            f"{describe_drainer(drainer)}: stop it, set it offline if it is gone, or name it in"
            " [upstream] unrelated-drainers",
        )
    pumps = [pump for pump in registry.pumps() if pump.state != "offline"]
    online = [pump for pump in pumps if pump.state == "online"]
    if not pumps:
        yield Finding(STOPS, "pumps: none is registered")
    if len(online) == 1:
        yield Finding(
            DIFFERS,
            f"pumps: only {online[0].node_id} is online: while it is replaced TiDB has none to"
            " write to, and stops; start a second one before",
        )
    for pump in pumps:
        yield from _pump(pump, checkpoint)


def _pump(pump: NodeStatus, checkpoint: Checkpoint | None) -> Iterator[Finding]:
    try:
        found = _GC_TS.search(_get(pump.host, "/metrics").decode("utf-8", "replace"))
    except OSError as error:
        yield Finding(
            DIFFERS if pump.state == "online" else STOPS,
            f"pump {pump.node_id} at {pump.host}, {pump.state}: doesn't report what it holds:"
            f" {error}",
        )
        return
    gc_ms = int(float(found[1])) if found else 0
    if checkpoint is not None and gc_ms > tso.physical_ms(checkpoint.commit_ts):
        yield Finding(
            STOPS,
            f"pump {pump.node_id}: has removed what was committed before"
            f" {tso.text(tso.span(gc_ms))}, which is after the checkpoint: copy the downstream"
            " again",
        )
    else:
        yield Finding(
            OK, f"pump {pump.node_id} at {pump.host}: {pump.state}, through {pump.max_commit_ts}"
        )


def tidb_server_findings(etcd: EtcdClient) -> Iterator[Finding]:
    """Yield for each TiDB server whether it writes binlogs. Raises EtcdError."""
    for item in etcd.range_prefix(PREFIX).items:
        address, _, what = item.key.removeprefix(PREFIX).rpartition("/")
        if what != "info":
            continue
        try:
            port = int(json.loads(item.value)["status_port"])
            binlog = (
                json.loads(_get(f"{address.rpartition(':')[0]}:{port}", "/config")).get("binlog")
                or {}
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            yield Finding(
                DIFFERS,
                f"TiDB {address}: its settings can't be read ({error}): see yourself that [binlog]"
                " enable is true and ignore-error false",
            )
            continue
        if not binlog.get("enable"):
            yield Finding(
                STOPS,
                f"TiDB {address}: [binlog] enable is false: what is written through it is in no"
                " binlog",
            )
        elif binlog.get("ignore-error"):
            yield Finding(
                DIFFERS,
                f"TiDB {address}: [binlog] ignore-error is true: after one failed write it goes on"
                " without binlogs, and nothing shows what is missing",
            )
        else:
            yield Finding(OK, f"TiDB {address}: writes binlogs, and stops when it can't")


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


def _relay(settings: Settings, cluster_id: int, checkpoint: Checkpoint | None) -> Iterator[Finding]:
    try:
        relay = settings.open_relay()
        first, stop = relay.first(), relay.stopped()
    except (RelayError, OSError) as error:
        yield Finding(STOPS, f"relay log {settings.relay.url}: {error}")
        return
    if first is not None and first.cluster_id != cluster_id:
        yield Finding(
            STOPS,
            f"relay log {relay.url}: is of cluster {first.cluster_id}; give each cluster one of"
            " its own",
        )
    elif first is not None and checkpoint is not None and first.lo > checkpoint.commit_ts:
        yield Finding(
            STOPS,
            f"relay log {relay.url}: begins at {tso.text(first.lo)}, after the checkpoint: begin a"
            " new one",
        )
    elif stop is not None:
        why = stop.why.removeprefix("applying was stopped: ")
        yield Finding(DIFFERS, f"applying was stopped, which `sluice takeover` lifts: {why}")
    else:
        yield Finding(
            OK,
            f"relay log {relay.url}:"
            f" {'empty' if first is None else f'from {tso.text(first.lo)} on'}",
        )


def _database(settings: Settings, pd: PDClient, checkpoint: Checkpoint | None) -> Iterator[Finding]:
    session = MySQLSession(settings.downstream)
    try:
        session.connect()  # looks at the version, the variables and the rights
        yield Finding(
            OK,
            f"downstream {session.address}: {session.dialect}, its variables and the user's rights"
            " are as needed",
        )
        if checkpoint is not None:
            yield from _tables(settings, pd, checkpoint, session)
    except DownstreamError as error:
        yield Finding(STOPS, f"downstream: {error}")
    finally:
        session.close()


def _tables(
    settings: Settings, pd: PDClient, checkpoint: Checkpoint, session: MySQLSession
) -> Iterator[Finding]:
    try:
        with TiKVClient(pd, tls=settings.upstream.tls()) as tikv:
            history = SchemaHistory()
            version = version_at(tikv, checkpoint.commit_ts)
            history.advance(
                CompactJobList.from_jobs(read_raw_ddl_jobs(tikv, pd.tso())).through(version),
                version,
            )
    except (TiKVError, HistoryError, SchemaError, PDError) as error:
        yield Finding(STOPS, f"the schema at the checkpoint can't be read from TiKV: {error}")
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
    yield Finding(
        OK, f"{len(wanted)} tables are replicated, by the filters and the schema at the checkpoint"
    )
    yield from _tables_finding(
        STOPS,
        missing,
        "not downstream: copy them as of the checkpoint, or leave them out with [filter]",
    )
    wide = [
        t
        for t in wanted
        if any(ord(c) > 0xFFFF for c in t.full_name + "".join(column.name for column in t.columns))
    ]
    yield from _tables_finding(
        STOPS, wide, "with names that the downstream can't hold (characters beyond U+FFFF)"
    )
    present = [t for t in wanted if t not in missing]
    engines = engines_without_transactions(session, [names[table.id] for table in present])
    for table, engine in zip(present, engines, strict=True):
        if engine:
            yield Finding(
                STOPS,
                f"table {table.full_name}: in the storage engine {engine} downstream, which has no"
                " transactions: ALTER TABLE ... ENGINE = InnoDB",
            )
    if checkpoint.needs_safe_mode:
        keyless = [t for t in present if not lookup_key_columns(t)]
        yield from _tables_finding(
            DIFFERS,
            keyless,
            "without a key: if the Drainer wrote rows of them beyond its checkpoint applying stops,"
            " with a hint how to compare and repair them",
        )
    for table in wanted:
        yield from _definition_findings(table, session)


def _definition_findings(table: Table, session: MySQLSession) -> Iterator[Finding]:
    try:
        _, left_out = create_table(table, session.dialect)
    except ValueError as error:
        yield Finding(DIFFERS, f"table {table.full_name}: {error}")
        return
    for text in left_out:
        yield Finding(DIFFERS, f"table {table.full_name}: {text}")


def _tables_finding(kind: str, tables: list[Table], what: str) -> Iterator[Finding]:
    if tables:
        names = sorted(table.full_name for table in tables)
        more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
        yield Finding(kind, f"{len(names)} tables {what}: {', '.join(names[:_MAX_SHOWN])}{more}")


__all__ = ["DIFFERS", "OK", "STOPS", "Finding", "check_takeover", "tidb_server_findings"]
