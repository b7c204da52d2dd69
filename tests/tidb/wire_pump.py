"""A pump on a real gRPC server that keeps what it is sent in memory, and can be told to fail, hang,
die and come back.
"""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc

from sluice.tidb import pb, pb_grpc
from sluice.tidb.etcd import NodeStatus

CLUSTER_ID = 4242


# A grpc server forgives a ping every five minutes unless told otherwise, and hangs up on who pings
# more often.
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


def binlog(tp, start_ts, commit_ts=0, **more):
    message = pb.binlog.Binlog(
        tp=tp, start_ts=start_ts, commit_ts=commit_ts, ddl_job_id=0, ddl_schema_state=0, **more
    )
    return message.SerializeToString()


def prewrite(start_ts):
    return binlog(pb.binlog.Prewrite, start_ts, prewrite_key=b"k", prewrite_value=b"v")


def commit(start_ts):
    return binlog(pb.binlog.Commit, start_ts, start_ts + 1)


class Pump(pb_grpc.pump.PumpServicer, pb_grpc.window.WindowServicer):
    """behaviour: "ok", "error", "errmsg", "hang", "too large", "lose the answer"."""

    def __init__(self, node_id):
        self.node_id = node_id
        self.behaviour = "ok"
        self.written: list[pb.binlog.Binlog] = []
        self.calls = Counter()
        self.lock = threading.Lock()
        self.chunks = lambda request: iter(())  # of Window.Read
        self.entities = lambda request: iter(())  # of PullBinlogs
        self.bounds = pb.window.BoundsResponse()
        self.asked = None
        self._server = None
        self.port = 0
        self.start()

    def start(self, port=None):
        self._server = grpc.server(ThreadPoolExecutor(32), options=SERVER_OPTIONS)
        pb_grpc.pump.add_PumpServicer_to_server(self, self._server)
        pb_grpc.window.add_WindowServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(
            f"127.0.0.1:{self.port if port is None else port}"
        )
        self._server.start()

    def stop(self):
        self._server.stop(0).wait()

    @property
    def status(self):
        return NodeStatus(self.node_id, f"127.0.0.1:{self.port}")

    def kinds(self, tp):
        with self.lock:
            return [one.start_ts for one in self.written if one.tp == tp]

    def _check(self, cluster_id, context):
        if cluster_id != CLUSTER_ID:
            context.abort(
                grpc.StatusCode.UNKNOWN, f"cluster ID are mismatch, {CLUSTER_ID} vs {cluster_id}"
            )

    def WriteBinlog(self, request, context):
        self._check(request.clusterID, context)
        with self.lock:
            self.calls["probe" if not request.payload else "write"] += 1
        if self.behaviour == "hang":
            while context.is_active() and self.behaviour == "hang":
                time.sleep(0.02)
            context.abort(grpc.StatusCode.UNAVAILABLE, "woken up")
        if self.behaviour == "error":
            context.abort(grpc.StatusCode.UNKNOWN, "no available space")
        if self.behaviour == "errmsg":
            return pb.pump.WriteBinlogResp(errmsg="no online: paused")
        if self.behaviour == "too large":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "message larger than max")
        if request.payload:
            with self.lock:
                self.written.append(pb.binlog.Binlog.FromString(request.payload))
        if self.behaviour == "lose the answer":
            context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
        return pb.pump.WriteBinlogResp()

    def PullBinlogs(self, request, context):
        self._check(request.clusterID, context)
        for entity in self.entities(request):
            yield pb.pump.PullBinlogResp(entity=entity)
        while context.is_active():
            time.sleep(0.02)

    def Bounds(self, request, context):
        self._check(request.cluster_id, context)
        self.asked = request
        return self.bounds

    def Read(self, request, context):
        self._check(request.cluster_id, context)
        self.asked = request
        for chunk in self.chunks(request):
            if chunk is None:
                while context.is_active():
                    time.sleep(0.02)
                return
            yield pb.window.ReadResponse(chunk=chunk)
