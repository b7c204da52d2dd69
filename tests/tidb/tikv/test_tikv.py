"""The TiKV client against gRPC servers that check regions, leaders, epochs and locks, and the keys
of TiDB's schema.
"""

import gzip
import json
import pathlib
import threading
import time

import pytest

from sluice.tidb import pb, tso
from sluice.tidb.codec.memcomparable import encode_bytes
from sluice.tidb.pd import PDClient
from sluice.tidb.tikv import (
    Mvcc,
    MvccLock,
    MvccWrite,
    TiKVClient,
    TiKVError,
    TxnKind,
    TxnStatus,
    meta,
)
from tests.tidb.wire_cluster import Cluster, Range

TS = tso.compose(1_700_000_000_000, 0)
RECORDING = pathlib.Path(__file__).parents[2] / "recordings" / "ddl" / "tikv-meta.jsonl.gz"


@pytest.fixture
def cluster():
    cluster = Cluster()
    cluster.data = {f"k{number:03}".encode(): f"v{number}".encode() for number in range(40)}
    yield cluster
    cluster.stop()


@pytest.fixture
def tikv(cluster):
    with PDClient(cluster.urls, timeout_s=30) as pd, TiKVClient(pd, timeout_s=60) as client:
        yield client


def _split(cluster, *, store=2, version=2):
    cluster.regions[:] = [
        Range(2, b"", b"k010", 1, version=version),
        Range(3, b"k010", b"k020", store, version=version),
        Range(4, b"k020", b"", 1, version=version),
    ]


def _lock(key, start_ts=TS, ttl_ms=60_000, primary=b"k000"):
    return pb.tikv.LockInfo(primary_lock=primary, lock_version=start_ts, key=key, lock_ttl=ttl_ms)


@pytest.mark.parametrize("says_so", [True, False], ids=["TiKV 4.0", "before 4.0"])
def test_get_finds_a_value_or_none(cluster, tikv, says_so):
    cluster.says_not_found = says_so
    assert tikv.get(b"k003", TS) == b"v3"
    assert tikv.get(b"nothing", TS) is None


def test_reads_begun_side_by_side_return_what_get_does(cluster, tikv):
    keys = [b"k003", b"nothing", b"k015"]
    begun = [tikv.begin_get(key, TS) for key in keys]
    assert [read.result() for read in begun] == [tikv.get(key, TS) for key in keys]
    assert cluster.calls["store1"] == 2 * len(keys)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("trouble", ["another leader", "split", "dead store", "lock"])
def test_a_read_that_was_begun_gets_through_whatever_happens_to_its_region(
    cluster, tikv, trouble, moment
):
    assert tikv.begin_get(b"k015", TS).result() == b"v15"
    begun = tikv.begin_get(b"k015", TS) if moment == "before" else None
    if trouble == "another leader":
        cluster.regions[0].store = 2
    elif trouble == "split":
        _split(cluster)
    elif trouble == "dead store":
        cluster.stores[1].stop()
        cluster.regions[0].store = 2
    else:
        cluster.locks[b"k015"] = _lock(b"k015", start_ts=TS - (120_000 << 18), ttl_ms=3000)
        cluster.statuses[b"k000"] = pb.tikv.CheckTxnStatusResponse(commit_version=TS - 5)
    if begun is None:
        begun = tikv.begin_get(b"k015", TS)
    assert (begun.result() if begun is not None else tikv.get(b"k015", TS)) == b"v15"


def test_no_read_is_begun_after_the_client_is_closed(cluster, tikv):
    assert tikv.begin_get(b"k015", TS).result() == b"v15"
    tikv.close()
    assert tikv.begin_get(b"k015", TS) is None


@pytest.mark.parametrize("says_so", [True, False], ids=["TiKV 4.0", "before 4.0"])
def test_a_ddl_job_that_is_not_in_the_history_yet_is_none_in_every_version(cluster, tikv, says_so):
    cluster.says_not_found = says_so
    assert meta.read_ddl_job(tikv, 143, TS) is None
    assert meta.read_schema_version(tikv, TS) == 0
    cluster.data[meta.history_job_key(143)] = b'{"id": 143}'
    assert meta.read_ddl_job(tikv, 143, TS) == {"id": 143}


def test_a_scan_crosses_regions_and_pages(cluster, tikv):
    _split(cluster)
    assert list(tikv.scan(b"k005", b"k033", TS, limit=4)) == [
        (f"k{number:03}".encode(), f"v{number}".encode()) for number in range(5, 33)
    ]
    assert len(list(tikv.scan(b"", b"", TS))) == 40
    assert list(tikv.scan(b"x", b"y", TS)) == []
    assert list(tikv.scan(b"k005", b"k005", TS)) == []


def test_a_new_leader_is_followed_without_asking_pd(cluster, tikv):
    assert tikv.get(b"k001", TS) == b"v1"
    asked = cluster.calls["pd0"]
    cluster.regions[0].store = 2
    assert tikv.get(b"k001", TS) == b"v1"
    assert tikv.get(b"k001", TS) == b"v1"
    assert cluster.calls["store1"] == 2
    assert cluster.calls["store2"] == 2
    assert cluster.calls["pd0"] == asked + 1  # the address of store 2


def test_a_split_is_learned_from_the_answer(cluster, tikv):
    assert tikv.get(b"k015", TS) == b"v15"
    _split(cluster, store=1)
    asked = cluster.calls["pd0"]
    assert tikv.get(b"k015", TS) == b"v15"
    assert [key for key, _ in tikv.scan(b"", b"", TS)] == sorted(cluster.data)
    assert cluster.calls["pd0"] == asked


def test_a_split_in_the_middle_of_a_scan_loses_and_doubles_nothing(cluster, tikv):
    scan = tikv.scan(b"", b"", TS, limit=3)
    keys = [next(scan)[0] for _ in range(5)]
    _split(cluster)
    keys += [key for key, _ in scan]
    assert keys == sorted(cluster.data)


def test_pd_being_behind_with_a_split_is_waited_out(cluster, tikv):
    old = Range(2, b"", b"", 1)
    _split(cluster)
    cluster.pd_regions = [old]
    assert tikv.get(b"k015", TS) == b"v15"


def test_a_region_that_is_gone_is_looked_up_again(cluster, tikv):
    assert tikv.get(b"k001", TS) == b"v1"
    cluster.regions[:] = [Range(77, b"", b"", 2, version=9)]
    assert tikv.get(b"k001", TS) == b"v1"


def test_a_moved_store_is_looked_up_again(cluster, tikv):
    assert tikv.get(b"k001", TS) == b"v1"
    cluster.stores[1], cluster.stores[2] = cluster.stores[2], cluster.stores[1]
    cluster.stores[1]._servicer._store, cluster.stores[2]._servicer._store = 1, 2
    assert tikv.get(b"k001", TS) == b"v1"


def test_a_dead_store_is_left_for_the_next_replica(cluster, tikv):
    assert tikv.get(b"k001", TS) == b"v1"
    cluster.stores[1].stop()
    cluster.regions[0].store = 2
    assert tikv.get(b"k001", TS) == b"v1"


@pytest.mark.parametrize(
    "kind",
    [
        "stale_command",
        "max_timestamp_not_synced",
        "read_index_not_ready",
        "proposal_in_merging_mode",
        "data_is_not_ready",
        "region_not_initialized",
        "recovery_in_progress",
        "key_not_in_region",
        "region_not_found",
        "mismatch_peer_id",
        "bucket_version_not_match",
        "undetermined_result",
        "not_leader",
        "epoch_not_match",
    ],
)
def test_a_passing_region_error_is_retried(cluster, tikv, kind):
    error = pb.errorpb.Error(message="for a moment")
    getattr(error, kind).SetInParent()
    cluster.errors = [error, error]
    assert tikv.get(b"k001", TS) == b"v1"
    assert cluster.errors == []


def test_a_region_error_of_a_kind_still_unknown_is_retried(cluster, tikv):
    cluster.errors = [pb.errorpb.Error(message="something new")]
    assert tikv.get(b"k001", TS) == b"v1"


def test_a_busy_server_is_given_the_time_it_asks_for(cluster, tikv):
    cluster.errors = [
        pb.errorpb.Error(server_is_busy=pb.errorpb.ServerIsBusy(reason="x", backoff_ms=300))
    ]
    begin = time.monotonic()
    assert tikv.get(b"k001", TS) == b"v1"
    assert time.monotonic() - begin >= 0.3


@pytest.mark.parametrize(
    "kind", ["raft_entry_too_large", "flashback_in_progress", "flashback_not_prepared"]
)
def test_a_region_error_that_will_not_pass_is_raised_at_once(cluster, tikv, kind):
    error = pb.errorpb.Error(message="no")
    getattr(error, kind).SetInParent()
    cluster.errors = [error]
    with pytest.raises(TiKVError, match=f"6b303031 in region 2: {kind}"):
        tikv.get(b"k001", TS)


def test_a_tikv_that_stays_away_is_an_error_in_time(cluster):
    with PDClient(cluster.urls, timeout_s=60) as pd, TiKVClient(pd, timeout_s=1) as client:
        for store in cluster.stores.values():
            store.stop()
        begin = time.monotonic()
        with pytest.raises(
            TiKVError, match=r"KvGet of key 6b303031 in region 2 failed for 1 s.*UNAVAILABLE"
        ):
            client.get(b"k001", TS)
        assert time.monotonic() - begin < 30


@pytest.mark.parametrize("call", ["get", "scan"])
def test_a_locked_key_is_waited_for(cluster, tikv, call):
    cluster.locks[b"k015"] = _lock(b"k015")
    _split(cluster)
    threading.Timer(0.4, cluster.locks.clear).start()
    begin = time.monotonic()
    if call == "get":
        assert tikv.get(b"k015", TS) == b"v15"
    else:
        assert dict(tikv.scan(b"k000", b"k030", TS))[b"k015"] == b"v15"
    assert time.monotonic() - begin >= 0.35
    assert cluster.resolved == []


def test_a_lock_that_stays_is_an_error_that_names_the_transaction(cluster):
    cluster.locks[b"k001"] = _lock(b"k001")
    with (
        PDClient(cluster.urls, timeout_s=60) as pd,
        TiKVClient(pd, timeout_s=2) as client,
        pytest.raises(TiKVError, match=f"6b303031 stayed locked.*{TS}, primary 6b303030"),
    ):
        client.get(b"k001", TS)


@pytest.mark.parametrize("commit_ts", [0, TS - 5])
def test_the_lock_of_a_dead_transaction_is_resolved_as_its_primary_says(cluster, tikv, commit_ts):
    old = TS - (120_000 << 18)
    cluster.locks[b"k015"] = _lock(b"k015", start_ts=old, ttl_ms=3000)
    cluster.statuses[b"k000"] = pb.tikv.CheckTxnStatusResponse(commit_version=commit_ts)
    assert tikv.get(b"k015", TS) == b"v15"
    [request] = cluster.resolved
    assert (request.start_version, request.commit_version, list(request.keys)) == (
        old,
        commit_ts,
        [b"k015"],
    )


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (pb.tikv.CheckTxnStatusResponse(lock_ttl=3000), TxnStatus(TxnKind.LOCKED, ttl_ms=3000)),
        (
            pb.tikv.CheckTxnStatusResponse(commit_version=9),
            TxnStatus(TxnKind.COMMITTED, commit_ts=9),
        ),
        (pb.tikv.CheckTxnStatusResponse(), TxnStatus(TxnKind.ROLLED_BACK)),
        (
            pb.tikv.CheckTxnStatusResponse(action=pb.tikv.TTLExpireRollback),
            TxnStatus(TxnKind.ROLLED_BACK),
        ),
        (
            pb.tikv.CheckTxnStatusResponse(action=pb.tikv.LockNotExistRollback),
            TxnStatus(TxnKind.ROLLED_BACK),
        ),
        (
            pb.tikv.CheckTxnStatusResponse(action=pb.tikv.TTLExpirePessimisticRollback),
            TxnStatus(TxnKind.UNDECIDED),
        ),
        (
            pb.tikv.CheckTxnStatusResponse(action=pb.tikv.LockNotExistDoNothing),
            TxnStatus(TxnKind.UNDECIDED),
        ),
        (
            pb.tikv.CheckTxnStatusResponse(
                error=pb.tikv.KeyError(txn_not_found=pb.tikv.TxnNotFound(start_ts=5))
            ),
            TxnStatus(TxnKind.NOT_FOUND),
        ),
    ],
)
def test_the_fate_of_a_transaction(cluster, tikv, answer, status):
    cluster.statuses[b"k001"] = answer
    assert tikv.check_txn_status(b"k001", 5, 5, TS, rollback_if_not_exist=True) == status


def test_another_key_error_is_raised(cluster, tikv):
    cluster.statuses[b"k001"] = pb.tikv.CheckTxnStatusResponse(
        error=pb.tikv.KeyError(abort="disk on fire")
    )
    with pytest.raises(TiKVError, match=r"transaction 5, primary 6b303031.*disk on fire"):
        tikv.check_txn_status(b"k001", 5, 5, TS, rollback_if_not_exist=True)


def test_the_records_of_a_key_tell_what_became_of_its_transactions(cluster, tikv):
    cluster.mvcc[b"k001"] = pb.tikv.MvccInfo(
        lock=pb.tikv.MvccLock(start_ts=50, primary=b"k001", ttl=3000),
        writes=[
            pb.tikv.MvccWrite(
                type=pb.tikv.Put, start_ts=38, commit_ts=40, has_overlapped_rollback=True
            ),
            pb.tikv.MvccWrite(type=pb.tikv.Rollback, start_ts=30, commit_ts=30),
            pb.tikv.MvccWrite(type=pb.tikv.Lock, start_ts=10, commit_ts=20),
        ],
    )
    found = tikv.mvcc_get(b"k001")
    assert found == Mvcc(
        MvccLock(50, b"k001", 3000),
        (MvccWrite(0, 38, 40, True), MvccWrite(3, 30, 30), MvccWrite(2, 10, 20)),
    )
    assert found.status(10) == TxnStatus(TxnKind.COMMITTED, commit_ts=20)
    assert found.status(30) == TxnStatus(TxnKind.ROLLED_BACK)
    assert found.status(38) == TxnStatus(TxnKind.COMMITTED, commit_ts=40)
    # its place is taken by the commit of 38
    assert found.status(40) == TxnStatus(TxnKind.ROLLED_BACK)
    assert found.status(50) == TxnStatus(TxnKind.LOCKED, ttl_ms=3000)
    assert found.status(60) == TxnStatus(TxnKind.NOT_FOUND)
    assert tikv.mvcc_get(b"other") == Mvcc(None, ())


@pytest.mark.parametrize(
    ("key", "wire"),
    [
        (meta.hash_prefix("DBs"), "6d4442730000000000fa0000000000000068"),
        (
            meta.hash_field_key("DBs", b"DB:1"),
            "6d4442730000000000fa000000000000006844423a3100000000fb",
        ),
        (
            meta.hash_field_key("DB:130", b"Table:42"),
            "6d44423a3133300000fd00000000000000685461626c653a3432ff0000000000000000f7",
        ),
        (
            meta.string_key("SchemaVersionKey"),
            "6d536368656d615665ff7273696f6e4b6579ff0000000000000000f70000000000000073",
        ),
        (meta.string_key("NextGlobalID"), "6d4e657874476c6f62ff616c494400000000fb0000000000000073"),
        (meta.string_key("Diff:25"), "6d446966663a323500fe0000000000000073"),
        (
            meta.hash_prefix("DDLJobHistory"),
            "6d44444c4a6f624869ff73746f7279000000fc0000000000000068",
        ),
        (meta.hash_end("DDLJobHistory"), "6d44444c4a6f624869ff73746f7279000000fc0000000000000069"),
        (
            meta.history_job_key(112),
            "6d44444c4a6f624869ff73746f7279000000fc00000000000000680000000000000070ff0000000000000000f7",
        ),
        (
            encode_bytes(meta.history_job_key(112)),
            "6d44444c4a6f6248ff69ff73746f727900ff0000fc0000000000ff0000680000000000ff000070ff00000000ff00000000f7000000fc",
        ),
    ],
)
def test_meta_keys_are_those_of_tidb(key, wire):
    assert key.hex() == wire


def test_the_ddl_history_of_a_recorded_cluster_is_read_whole_and_job_by_job(cluster, tikv):
    with gzip.open(RECORDING, "rt") as lines:
        pairs = [json.loads(line) for line in lines if line.startswith("{")]
    cluster.data = {bytes.fromhex(pair["key"]): bytes.fromhex(pair["value"]) for pair in pairs}
    jobs = list(meta.read_ddl_jobs(tikv, TS))
    ids = [job["id"] for job in jobs]
    prefix = meta.hash_prefix("DDLJobHistory")
    assert len(jobs) == sum(key.startswith(prefix) for key in cluster.data) > 50
    assert ids == sorted(ids)
    assert meta.read_ddl_job(tikv, ids[10], TS) == jobs[10]
    assert meta.read_ddl_job(tikv, 10**9, TS) is None
    versions = [job["binlog"]["SchemaVersion"] for job in jobs if job.get("binlog")]
    assert meta.read_schema_version(tikv, TS) >= max(versions)
    cluster.data[meta.history_job_key(10**6)] = b"{"
    with pytest.raises(ValueError, match="DDL job 1000000"):
        meta.read_ddl_job(tikv, 10**6, TS)


def test_the_schema_version_before_any_ddl_is_zero(cluster, tikv):
    assert meta.read_schema_version(tikv, TS) == 0
