"""The definitions at the begin of a capture, from TiKV's schema keys, and what later keys make of
them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import pytest

from sluice.pump_service.capture.schema_tracker import MetaChange, SchemaTracker
from sluice.tidb import tso
from sluice.tidb.codec.memcomparable import encode_int
from sluice.tidb.history import SYSTEM_SCHEMAS, SchemaHistory
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.partitions import partition_ids
from sluice.tidb.pd import PDClient
from sluice.tidb.record_keys import record_key
from sluice.tidb.schema import MAX_USER_TABLE_ID
from sluice.tidb.tikv import TiKVClient
from sluice.tidb.tikv.meta import hash_field_key, history_job_key, string_key, table_key
from tests.pump_service.capture.test_binlog_writer import (
    BOOTSTRAP,
    COMING,
    PARTED,
    PARTITIONS,
    PLAIN,
    SYSTEM,
    USER,
    table_info,
    tracker,
)
from tests.tidb import recorded
from tests.tidb.wire_cluster import Cluster, Range

TS = tso.compose(1_700_000_000_000, 0)


@pytest.fixture
def tikv() -> Iterator[TiKVClient]:
    """TiKV with the schema keys of a recording, in two regions that cut through a database."""
    cluster = Cluster()
    with gzip.open(recorded.FOLDER / "ddl" / "tikv-meta.jsonl.gz", "rt") as lines:
        pairs = [json.loads(line) for line in lines if line.startswith("{")]
    cluster.data = {bytes.fromhex(pair["key"]): bytes.fromhex(pair["value"]) for pair in pairs}
    middle = sorted(key for key in cluster.data if b"Table:" in key)[20]
    cluster.regions[:] = [Range(2, b"", middle, 1), Range(3, middle, b"", 2)]
    with PDClient(cluster.urls, timeout_s=30) as pd, TiKVClient(pd, timeout_s=60) as client:
        yield client
    cluster.stop()


def test_the_definitions_in_tikv_are_those_that_all_ddl_jobs_have_made(tikv: TiKVClient) -> None:
    schema = SchemaTracker.read(tikv, TS)
    jobs = [DdlHistoryJob.from_json(job) for job in recorded.meta("ddl")[0].values()]
    history = SchemaHistory.from_jobs(jobs)
    assert schema.schema_version >= history.schema_version > 0
    assert schema.exchanged_since(0) == {120}, "px, which became a partition of p"
    replicated = [
        table
        for table in history.tables.values()
        if table.schema_name not in SYSTEM_SCHEMAS
        and table.id <= MAX_USER_TABLE_ID
        and table.is_base_table
    ]
    assert len(replicated) > 5
    for table in replicated:
        found = schema.table(table.id)
        assert found is not None and (found.full_name, found.columns) == (
            table.full_name,
            table.columns,
        )
        for physical_id in partition_ids(table) or [table.id]:
            converter = schema.converter(physical_id, 1)
            assert converter is not None and converter.table.id == table.id
    for table in history.tables.values():
        if table.schema_name in SYSTEM_SCHEMAS:
            assert schema.converter(table.id, 1) is None


@pytest.mark.parametrize(("is_there", "known"), [(True, 9), (False, 8)])
def test_a_version_counts_once_tikv_has_what_it_changed(is_there: bool, known: int) -> None:
    cluster = Cluster()
    cluster.data = {string_key("SchemaVersionKey"): b"9"}
    if is_there:
        cluster.data[string_key("Diff:9")] = b'{"version": 9}'
    try:
        with PDClient(cluster.urls, timeout_s=30) as pd, TiKVClient(pd, timeout_s=60) as client:
            assert SchemaTracker.read(client, TS).schema_version == known
    finally:
        cluster.stop()


def exchange(job_id: int, table_id: int, finished_ts: int) -> dict[str, object]:
    names = {"type": 42, "state": 6, "schema_id": USER, "table_id": table_id}
    return {"id": job_id, **names, "binlog": {"SchemaVersion": 7, "FinishedTS": finished_ts}}


@pytest.mark.parametrize("is_in_history", [True, False])
def test_exchanges_of_the_last_day_before_the_begin_are_known(is_in_history: bool) -> None:
    """`mysql.tidb_ddl_job` has a job until it is in the history, even if it is done."""
    minute, day = tso.span(60_000), tso.span(86_400_000)
    old, last = exchange(139, 62, TS - 2 * day), exchange(140, PLAIN, TS - 10 * minute)
    coming = exchange(150, 61, 0) | {"state": 2}
    history = [old, exchange(141, 999, TS - minute)]
    running = [coming]
    if is_in_history:
        history.append(last)
    else:
        running.append(last | {"state": 4, "binlog": {}})
    cluster = Cluster()
    job_table = json.loads(table_info(BOOTSTRAP))
    job_table["name"] = {"O": "tidb_ddl_job", "L": "tidb_ddl_job"}
    cluster.data = {
        **{
            hash_field_key("DBs", f"DB:{i}".encode()): json.dumps(
                {"id": i, "db_name": {"O": name, "L": name}}
            ).encode()
            for i, name in ((USER, "shop"), (SYSTEM, "mysql"))
        },
        table_key(SYSTEM, BOOTSTRAP): json.dumps(job_table).encode(),
        table_key(USER, 61): table_info(61),
        table_key(USER, PARTED): table_info(PARTED, partitions=(PLAIN, 62)),
        **{history_job_key(int(str(job["id"]))): json.dumps(job).encode() for job in history},
        **{
            record_key(BOOTSTRAP, encode_int(int(str(job["id"])))): json.dumps(job).encode()
            for job in running
        },
    }
    try:
        with PDClient(cluster.urls, timeout_s=30) as pd, TiKVClient(pd, timeout_s=60) as client:
            schema = SchemaTracker.read(client, TS)
    finally:
        cluster.stop()
    assert schema.exchanged_since(TS - 3 * day) == {PLAIN}
    assert schema.exchanged_since(TS - 11 * minute) == {PLAIN}
    assert schema.exchanged_since(TS) == frozenset()
    assert bool(schema.exchanged_since(TS - 9 * minute)) is not is_in_history


def define(table_id: int, info: bytes, schema_id: int = USER) -> MetaChange:
    return MetaChange(f"DB:{schema_id}".encode(), "h", f"Table:{table_id}".encode(), info)


@pytest.mark.parametrize("order", [1, -1])
def test_an_exchanged_partition_and_its_table_swap_their_ids(order: int) -> None:
    schema = tracker()
    first, second = PARTITIONS
    schema.apply(
        [
            define(PARTED, table_info(PARTED, partitions=(PLAIN, second))),
            define(PLAIN, b""),
            define(first, table_info(first)),
        ][::order]
    )
    owners = {
        i: converter.table.id
        for i in (PLAIN, first, second)
        if (converter := schema.converter(i, 1))
    }
    assert owners == {PLAIN: PARTED, first: first, second: PARTED}


def test_a_partition_that_is_reorganized_counts_from_the_step_on_that_makes_it_public() -> None:
    schema = tracker()
    first, second = PARTITIONS
    assert schema.converter(COMING, 1) is None and schema.converter(first, 1) is not None
    schema.apply([define(PARTED, table_info(PARTED, partitions=(COMING, second)))])
    converter = schema.converter(COMING, 1)
    assert converter is not None and converter.table.id == PARTED
    assert schema.converter(first, 1) is None


@pytest.mark.parametrize("order", [1, -1])
def test_a_table_that_moves_to_another_database_stays(order: int) -> None:
    schema = tracker()
    database = MetaChange(
        b"DBs", "h", b"DB:3", b'{"id": 3, "db_name": {"O": "other", "L": "other"}}'
    )
    moved = [define(PLAIN, b""), define(PLAIN, table_info(PLAIN), 3)]
    schema.apply([*moved[::order], database])
    table = schema.table(PLAIN)
    assert table is not None and table.full_name == "other.t50"
