"""Run a real etcd, the stand-in cluster as a process, and pumps that keep a journal."""

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path

import grpc

from sluice.tidb import EtcdClient, NodeStatus, Registry, pb, pb_grpc
from tests.ports import free_port
from tests.tidb.etcd_fixture import without_fsync

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "tests" / "recordings"


def wait_for(condition, timeout_s=60.0, what="the condition", pause_s=0.02):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(pause_s)
    raise AssertionError(f"{what} did not come true in {timeout_s} s")


def end(process):
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


@contextlib.contextmanager
def etcd(tmp_path):
    client, peer = free_port(), free_port()
    url = f"http://127.0.0.1:{client}"
    peer_url = f"http://127.0.0.1:{peer}"
    with (tmp_path / "etcd.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "etcd",
                f"--data-dir={tmp_path / 'etcd'}",
                f"--listen-client-urls={url}",
                f"--advertise-client-urls={url}",
                f"--listen-peer-urls={peer_url}",
                f"--initial-advertise-peer-urls={peer_url}",
                f"--initial-cluster=default={peer_url}",
                *without_fsync(),
            ],
            stdout=log,
            stderr=log,
        )
    try:

        def healthy():
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
                    return b"true" in answer.read()
            except OSError:
                return False

        wait_for(healthy, what="etcd's health")
        yield url
    finally:
        end(process)


class ClusterProcess:
    def __init__(self, process, port, sql, control):
        self.process, self.port, self.sql, self.control = process, port, sql, control
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path):
        return self._call(urllib.request.Request(f"http://127.0.0.1:{self.control}{path}"))

    def post(self, path, **body):
        return self._call(
            urllib.request.Request(
                f"http://127.0.0.1:{self.control}{path}",
                method="POST",
                data=json.dumps(body).encode(),
            )
        )

    def _call(self, request):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return {"status": error.code, **json.load(error)}

    def wait_state(self, *states, timeout_s=180.0):
        return wait_for(
            lambda: (status := self.get("/status"))["state"] in states and status,
            timeout_s,
            f"state {states}",
            pause_s=0.1,  # the cluster plays with the same CPU
        )


@contextlib.contextmanager
def cluster(etcd_url, recording=None, *more):
    arguments = [
        "--etcd",
        etcd_url,
        "--listen",
        "127.0.0.1:0",
        "--control",
        "127.0.0.1:0",
        "--sql",
        "127.0.0.1:0",
        *more,
    ]
    if recording is not None:
        arguments += ["--recording", str(recording)]
    process = subprocess.Popen(
        [sys.executable, "-m", "sluice.devstack.tidb", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        line = process.stdout.readline()
        assert line, f"the cluster ended with {process.wait()}"
        ports = [int(word.strip(",")) for word in line.split() if word.strip(",").isdigit()]
        yield ClusterProcess(process, *ports[-3:])
    finally:
        end(process)
        process.stdout.close()


@dataclass
class Event:
    """`kind` is "got" when a binlog arrives and "acked" just before its answer leaves."""

    kind: str
    pump: str
    tp: int
    start_ts: int
    commit_ts: int
    payload: bytes


class Journal:
    """Events of all pumps in one order."""

    def __init__(self):
        self.events: list[Event] = []
        self._lock = threading.Lock()

    def note(self, *event):
        with self._lock:
            self.events.append(Event(*event))

    def binlogs(self, tp, kind="acked"):
        with self._lock:
            return [e for e in self.events if e.tp == tp and e.kind == kind]


class PumpServer(pb_grpc.pump.PumpServicer):
    """A pump's gRPC front: keeps the journal; one answer in twenty takes up to `delay_s`."""

    def __init__(self, node_id, registry, journal, cluster_id, delay_s=0.0, port=0):
        self.node_id, self.journal, self.cluster_id, self.delay_s = (
            node_id,
            journal,
            cluster_id,
            delay_s,
        )
        self.refusing = False
        self.server = grpc.server(
            futures.ThreadPoolExecutor(8),
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 1000),
                ("grpc.max_receive_message_length", -1),
            ],
        )
        pb_grpc.pump.add_PumpServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        self.server.start()
        registry.register_pump(
            NodeStatus(node_id=node_id, host=f"127.0.0.1:{self.port}", state="online")
        )

    def WriteBinlog(self, request, context):
        if request.clusterID != self.cluster_id:
            context.abort(
                grpc.StatusCode.UNKNOWN,
                f"cluster ID are mismatch, {self.cluster_id} vs {request.clusterID}",
            )
        if self.refusing:
            context.abort(grpc.StatusCode.UNAVAILABLE, "down")
        if request.payload:
            message = pb.binlog.Binlog.FromString(request.payload)
            event = (self.node_id, message.tp, message.start_ts, message.commit_ts, request.payload)
            self.journal.note("got", *event)
            if self.delay_s and random.random() < 0.05:  # a few slow ones turn the order round
                time.sleep(random.random() * self.delay_s)
            self.journal.note("acked", *event)
        return pb.pump.WriteBinlogResp()

    def stop(self):
        self.server.stop(0).wait()


@contextlib.contextmanager
def pumps(pd_url, cluster_id, journal, count=2, delay_s=0.0):
    with EtcdClient(pd_url, timeout_s=60) as client:
        registry = Registry(client)
        started = [
            PumpServer(f"pump-{n}", registry, journal, cluster_id, delay_s) for n in range(count)
        ]
        try:
            yield started
        finally:
            for pump in started:
                pump.stop()
                client.delete(f"/tidb-binlog/v1/pumps/{pump.node_id}")
