import asyncio
import contextlib
import gzip
import json
import subprocess
import sys
import threading
import time
from itertools import pairwise

import grpc
import pytest

from sluice.devstack.recording import Recording
from sluice.devstack.tidb import Cluster, ClusterOptions
from sluice.tidb import (
    EtcdClient,
    PDClient,
    TiKVClient,
    pb,
    pb_grpc,
    read_ddl_job,
    read_ddl_jobs,
    read_schema_version,
)
from sluice.tidb.codec.memcomparable import encode_bytes
from sluice.tidb.tikv import TxnKind
from sluice.tidb.tikv.meta import hash_prefix
from tests.devstack.cluster_harness import RECORDINGS, ROOT, Journal, cluster, etcd, pumps, wait_for

DDL = RECORDINGS / "ddl"


def recorded_jobs(recording):
    prefix = hash_prefix("DDLJobHistory")
    return [
        json.loads(value) for key, value in sorted(recording.meta_keys()) if key.startswith(prefix)
    ]


@pytest.fixture(scope="module")
def etcd_url(tmp_path_factory):
    with etcd(tmp_path_factory.mktemp("etcd")) as url:
        yield url


@pytest.fixture(scope="module")
def idle(etcd_url):
    """A cluster before its replay."""
    with cluster(etcd_url, DDL) as started:
        yield started


@pytest.fixture
def pd(idle):
    with PDClient(idle.url, timeout_s=60) as client:
        yield client


@pytest.fixture
def tikv(pd):
    with TiKVClient(pd) as client:
        yield client


@contextlib.contextmanager
def in_process(etcd_url, recording):
    """The cluster on a loop of its own thread, so that a test can reach inside."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    async def build():
        made = Cluster(ClusterOptions(etcd_url, recording=recording))
        await made.start()
        return made

    started = run(build())
    try:
        yield started, lambda action: run(_call(action))
    finally:
        run(started.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


async def _call(action):
    return action()


def test_members_name_the_recorded_cluster_and_its_one_leader(idle, pd):
    assert pd.cluster_id == Recording(DDL).cluster_id
    assert idle.url in pd.urls


@pytest.mark.parametrize(
    "method", ["GetRegion", "GetStore", "GetAllStores", "GetGCSafePoint", "ScanRegions"]
)
def test_a_call_with_another_clusters_id_is_refused_in_pds_words(idle, pd, method):
    with grpc.insecure_channel(f"127.0.0.1:{idle.port}") as channel:
        stub = pb_grpc.pd.PDStub(channel)
        request = getattr(pb.pd, f"{method}Request")(header=pb.pd.RequestHeader(cluster_id=7))
        with pytest.raises(grpc.RpcError) as caught:
            getattr(stub, method)(request, timeout=60)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == f"mismatch cluster id, need {pd.cluster_id} but got 7"


def test_a_timestamp_stream_of_another_cluster_is_refused(idle, pd):
    with grpc.insecure_channel(f"127.0.0.1:{idle.port}") as channel:
        request = pb.pd.TsoRequest(header=pb.pd.RequestHeader(cluster_id=7), count=1)
        with pytest.raises(grpc.RpcError) as caught:
            list(pb_grpc.pd.PDStub(channel).Tso(iter([request]), timeout=60))
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert f"need {pd.cluster_id} but got 7" in caught.value.details()


def test_a_method_that_old_pds_lack_is_unimplemented(idle):
    with (
        grpc.insecure_channel(f"127.0.0.1:{idle.port}") as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.unary_unary("/pdpb.PD/GetClusterInfo")(b"", timeout=60)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_batches_of_timestamps_never_overlap_between_clients(idle, pd):
    header = pb.pd.RequestHeader(cluster_id=pd.cluster_id)
    taken = []
    with grpc.insecure_channel(f"127.0.0.1:{idle.port}") as channel:
        stub = pb_grpc.pd.PDStub(channel)
        requests = [pb.pd.TsoRequest(header=header, count=count) for count in (1, 10, 3, 1000)]
        for answer, request in zip(stub.Tso(iter(requests), timeout=60), requests):
            assert answer.count == request.count
            assert answer.timestamp.logical >= request.count - 1
            ts = answer.timestamp.physical << 18 | answer.timestamp.logical
            taken += range(ts - request.count + 1, ts + 1)
            taken.append(pd.tso())
    assert len(taken) == len(set(taken)) == 1014 + 4
    assert max(taken) < min(Recording(DDL).transactions()), "the recording must stay in the future"


def test_regions_cover_the_key_space_without_gap_and_the_store_is_where_pd_says(idle, pd):
    header = pb.pd.RequestHeader(cluster_id=pd.cluster_id)
    with grpc.insecure_channel(f"127.0.0.1:{idle.port}") as channel:
        stub = pb_grpc.pd.PDStub(channel)
        found = [
            r.region
            for r in stub.ScanRegions(pb.pd.ScanRegionsRequest(header=header), timeout=60).regions
        ]
        assert len(found) == 3
        assert [found[0].start_key, found[-1].end_key] == [b"", b""]
        assert all(left.end_key == right.start_key for left, right in pairwise(found))
        by_id = stub.GetRegionByID(
            pb.pd.GetRegionByIDRequest(header=header, region_id=found[1].id), timeout=60
        )
        assert by_id.region == found[1]
        previous = pb.pd.GetRegionRequest(header=header, region_key=found[1].start_key)
        assert stub.GetPrevRegion(previous, timeout=60).region == found[0]
        assert not stub.GetRegionByID(
            pb.pd.GetRegionByIDRequest(header=header, region_id=999), timeout=60
        ).region.id
        with pytest.raises(grpc.RpcError, match="invalid store ID 99, not found"):
            stub.GetStore(pb.pd.GetStoreRequest(header=header, store_id=99), timeout=60)
    for key in (b"", b"m", b"t", b"t\x80", b"zzz", hash_prefix("DDLJobHistory")):
        region = pd.get_region(key)
        assert region.start_key <= key
        assert not region.end_key or key < region.end_key


def test_service_safe_points_guard_the_smallest_until_they_are_removed(pd):
    assert pd.get_gc_safe_point() == 0
    assert pd.update_service_gc_safe_point("sluice-a", 60, 1000) == 1000
    assert pd.update_service_gc_safe_point("sluice-b", 60, 2000) == 1000
    assert pd.update_service_gc_safe_point("sluice-a", 0, 0) == 2000
    assert pd.update_service_gc_safe_point("sluice-c", 60, 1500) == 1500, (
        "nothing of it is dropped yet"
    )
    pd.update_service_gc_safe_point("sluice-b", 0, 0)
    pd.update_service_gc_safe_point("sluice-c", 0, 0)


def test_before_the_replay_there_is_no_schema_history(pd, tikv):
    ts = pd.tso()
    assert read_schema_version(tikv, ts) == 0
    assert list(read_ddl_jobs(tikv, ts)) == []


def test_etcd_is_served_on_pds_port_byte_for_byte(idle, etcd_url):
    with (
        EtcdClient(idle.url, timeout_s=60) as through,
        EtcdClient(etcd_url, timeout_s=60) as direct,
    ):
        assert through.create("/test/a", b"\x00\xff")
        assert not through.create("/test/a", b"again")
        assert direct.get("/test/a") == through.get("/test/a")
        watch = through.watch_prefix("/test/", direct.range_prefix("/test/").revision + 1)
        direct.put("/test/b", b"1")
        direct.delete("/test/a")
        seen = []
        for batch in watch:
            seen += [(event.item.key, event.deleted) for event in batch.events]
            if len(seen) >= 2:
                break
        watch.close()
        assert seen == [("/test/b", False), ("/test/a", True)]
        assert [through.delete(item.key) for item in through.range_prefix("/test/").items] == [True]


def test_etcds_errors_come_through_with_their_code_and_text(idle, etcd_url):
    answers = []
    for port in (idle.port, int(etcd_url.rsplit(":", 1)[1])):
        with (
            grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
            pytest.raises(grpc.RpcError) as caught,
        ):
            pb_grpc.etcd.KVStub(channel).Range(
                pb.etcd.RangeRequest(key=b"x", revision=1 << 40), timeout=60
            )
        answers.append((caught.value.code(), caught.value.details()))
    assert answers[0] == answers[1]
    assert answers[0][0] == grpc.StatusCode.OUT_OF_RANGE


def test_a_lease_is_kept_alive_through_the_proxy(idle):
    with grpc.insecure_channel(f"127.0.0.1:{idle.port}") as channel:
        granted = channel.unary_unary("/etcdserverpb.Lease/LeaseGrant")(
            b"\x08\x3c\x10\x07", timeout=60
        )
        assert b"\x10\x07\x18\x3c" in granted  # ID 7, TTL 60
        go_on = threading.Event()

        def requests():
            for _ in range(3):
                yield b"\x08\x07"
            go_on.wait(60)

        answers = channel.stream_stream("/etcdserverpb.Lease/LeaseKeepAlive")(
            requests(), timeout=60
        )
        assert all(b"\x10\x07\x18\x3c" in next(answers) for _ in range(3))
        go_on.set()
        assert list(answers) == []


@pytest.mark.slow
def test_schema_history_grows_with_the_replay(etcd_url):
    recording = Recording(DDL)
    label = recording.label("d_many")
    finished = {
        t.ddl_job_id: t.commit_ts for t in recording.transactions().values() if t.ddl_job_id
    }
    expected = [job for job in recorded_jobs(recording) if finished[job["id"]] <= label.ts]
    assert 0 < len(expected) < len(finished)
    with (
        cluster(etcd_url, DDL) as started,
        PDClient(started.url, timeout_s=60) as pd,
        TiKVClient(pd) as tikv,
    ):
        with pumps(started.url, recording.cluster_id, Journal()):
            assert started.post("/replay", until="d_many")["state"] == "replaying"
            status = started.wait_state("done")
        assert status["counts"]["transactions"] == len(recording.transactions(label.ts))
        # The last job is in the history one transaction after the one that finished it.
        jobs = wait_for(
            lambda: (
                (found := list(read_ddl_jobs(tikv, pd.tso())))
                and len(found) == len(expected)
                and found
            )
        )
        assert jobs == expected
        newest = max(job["binlog"]["SchemaVersion"] for job in expected)
        assert read_schema_version(tikv, pd.tso()) == status["schema_version"] == newest
        # An older read sees the schema as it was then.
        middle = expected[len(expected) // 2]
        at = finished[middle["id"]]
        assert read_schema_version(tikv, at) == middle["binlog"]["SchemaVersion"]
        assert read_schema_version(tikv, at - 1) < middle["binlog"]["SchemaVersion"]
        assert read_ddl_job(tikv, middle["id"], at) is None
        assert read_ddl_job(tikv, middle["id"], middle["binlog"]["FinishedTS"] + 1) == middle
        for job in recorded_jobs(recording)[len(expected) :]:
            assert read_ddl_job(tikv, job["id"], pd.tso()) is None


def test_every_recorded_transaction_has_its_fate_in_tikv_after_the_replay(etcd_url):
    recording = Recording(RECORDINGS / "orphans")
    with (
        cluster(etcd_url, recording.directory) as started,
        PDClient(started.url, timeout_s=60) as pd,
        TiKVClient(pd) as tikv,
    ):
        some = next(iter(recording.transactions().values()))
        assert tikv.mvcc_get(some.prewrite_key).status(some.start_ts).kind == TxnKind.NOT_FOUND
        with pumps(started.url, recording.cluster_id, Journal()):
            started.post("/replay")
            started.wait_state("done")
        kinds = []
        for txn in recording.transactions().values():
            status = tikv.mvcc_get(txn.prewrite_key).status(txn.start_ts)
            now = pd.tso()
            checked = tikv.check_txn_status(
                txn.prewrite_key, txn.start_ts, txn.start_ts, now, rollback_if_not_exist=True
            )
            assert (checked.kind, checked.commit_ts) == (status.kind, status.commit_ts)
            assert status.commit_ts == txn.commit_ts
            kinds.append(status.kind)
        assert kinds.count(TxnKind.COMMITTED) == 109 + 15
        assert kinds.count(TxnKind.ROLLED_BACK) == len(kinds) - 124


def test_asking_for_a_transaction_that_never_was_writes_its_rollback_only_when_told_to(pd, tikv):
    start_ts, key = pd.tso(), b"t\x80\x00\x00\x00\x00\x00\x00\x01_r\x80\x00\x00\x00\x00\x00\x00\x09"
    assert (
        tikv.check_txn_status(key, start_ts, start_ts, pd.tso(), rollback_if_not_exist=False).kind
        == TxnKind.NOT_FOUND
    )
    assert tikv.mvcc_get(key).writes == ()
    assert (
        tikv.check_txn_status(key, start_ts, start_ts, pd.tso(), rollback_if_not_exist=True).kind
        == TxnKind.ROLLED_BACK
    )
    assert tikv.mvcc_get(key).status(start_ts).kind == TxnKind.ROLLED_BACK


def test_clients_find_keys_again_after_regions_split_under_them(etcd_url):
    with (
        in_process(etcd_url, DDL) as (inside, call),
        PDClient(f"http://127.0.0.1:{inside.port}") as pd,
        TiKVClient(pd) as tikv,
    ):
        everything = dict(tikv.scan(b"m", b"n", pd.tso()))
        keys = sorted(everything)
        assert len(keys) > 50
        for at in range(5, len(keys), 17):
            call(lambda at=at: inside.regions.split(keys[at]))
            assert tikv.get(keys[at], pd.tso()) == everything[keys[at]]
        assert dict(tikv.scan(b"m", b"n", pd.tso(), limit=7)) == everything


def test_requests_for_the_wrong_region_get_tikvs_errors(idle, pd):
    region = pd.get_region(b"m")
    peer = region.peers[0]
    good = pb.tikv.Context(
        region_id=region.id,
        region_epoch=pb.metapb.RegionEpoch(conf_ver=region.conf_ver, version=region.version),
        peer=pb.metapb.Peer(id=peer.id, store_id=peer.store_id),
    )

    def error_of(context, key=b"m"):
        with grpc.insecure_channel(f"127.0.0.1:{idle.port}") as channel:
            request = pb.tikv.GetRequest(context=context, key=key, version=pd.tso())
            return pb_grpc.tikv.TikvStub(channel).KvGet(request, timeout=60).region_error

    def changed(**fields):
        context = pb.tikv.Context()
        context.CopyFrom(good)
        for name, value in fields.items():
            target = context
            *path, last = name.split("__")
            for step in path:
                target = getattr(target, step)
            setattr(target, last, value)
        return context

    assert not error_of(good).message
    assert error_of(changed(region_id=999)).region_not_found.region_id == 999
    assert error_of(changed(peer__store_id=9)).store_not_match.actual_store_id == peer.store_id
    assert (
        error_of(changed(region_epoch__version=1)).epoch_not_match.current_regions[-1].id
        == region.id
    )
    assert error_of(good, b"t\x01").key_not_in_region.end_key == encode_bytes(region.end_key)


def test_control_refuses_what_makes_no_sense_and_says_why(idle):
    assert "no label 'nope'" in idle.post("/replay", until="nope")["error"]
    assert "speed" in idle.post("/replay", speed="fast")["error"]
    assert "speed" in idle.post("/replay", speed=-1)["error"]
    assert "one of range, hash, score" in idle.post("/replay", strategy="best")["error"]
    assert "no GET /nothing" in idle.get("/nothing")["error"]
    assert idle.post("/workload")["status"] == 409
    refused = idle.post("/replay")
    assert refused["status"] == 409
    assert "no pump is registered" in refused["error"]
    assert idle.get("/status")["state"] == "idle"


@pytest.mark.slow
def test_a_second_replay_in_one_cluster_is_refused(etcd_url):
    recording = Recording(RECORDINGS / "orphans")
    with (
        cluster(etcd_url, recording.directory) as started,
        pumps(started.url, recording.cluster_id, Journal()),
    ):
        started.post("/replay")
        started.wait_state("done")
        assert "fresh one" in started.post("/replay")["error"]


@pytest.mark.slow
def test_a_damaged_recording_ends_the_process_with_the_reason(tmp_path, etcd_url):
    folder = tmp_path / "broken"
    folder.mkdir()
    for name in ("recording.json", "snapshots.json", "tikv-meta.jsonl.gz"):
        (folder / name).write_bytes((DDL / name).read_bytes())
    with gzip.open(folder / "binlogs.bin.gz", "wb") as stream:
        stream.write(b"\x05hello")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sluice.devstack.tidb",
            "--etcd",
            etcd_url,
            "--recording",
            str(folder),
            "--listen",
            "127.0.0.1:0",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert "binlogs.bin.gz, record 0 at byte 0" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_cluster_without_recording_starts_at_the_wall_clock(etcd_url):
    with cluster(etcd_url) as started, PDClient(started.url, timeout_s=60) as pd:
        assert abs((pd.tso() >> 18) - time.time() * 1000) < 60_000
        assert "no recording" in started.post("/replay")["error"]
