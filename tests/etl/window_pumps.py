"""Pumps that serve sluice.Window over real gRPC from a list of transactions; no Spark, no store."""

from __future__ import annotations

import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pyarrow as pa

from sluice.tidb import NodeStatus, pb, pb_grpc
from sluice.tidb.window_schema import WINDOW_SCHEMA, digest_of

CLUSTER_ID = 7


def batch_of(rows):
    """Return rows (commit_ts, start_ts, payload) as a batch of a window."""
    columns = zip(*rows) if rows else ((), (), ())
    return pa.record_batch(
        [pa.array(values, field.type) for values, field in zip(columns, WINDOW_SCHEMA)],
        schema=WINDOW_SCHEMA,
    )


class WindowPump(pb_grpc.window.WindowServicer, pb_grpc.pump.PumpServicer):
    """Holds (commit_ts, start_ts, payload), ascending.

    `mark` is its max_commit_ts, which `Bounds` moves to the fresh timestamp unless `stuck_at` holds
    it back. While it `is_original` it only has PullBinlogs, of a fake at 500.
    """

    def __init__(self, node_id, rows=(), state="online"):
        self.rows = list(rows)
        self.stuck_at = None
        self.is_original = self.sends_windows = self.is_damaged = False
        self.purged_through = 0
        self.share = ""
        self.late = []  # (commit_ts, start_ts)
        self.delay = threading.Event()
        self.delay.set()
        self.asked = []
        self.cuts = []  # after how many transactions the next reads are cancelled
        self.server = grpc.server(ThreadPoolExecutor(4))
        pb_grpc.window.add_WindowServicer_to_server(self, self.server)
        pb_grpc.pump.add_PumpServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.status = NodeStatus(node_id, f"127.0.0.1:{self.port}", state)

    def PullBinlogs(self, request, context):
        fake = pb.binlog.Binlog(tp=pb.binlog.Rollback, start_ts=500, commit_ts=500)
        yield pb.pump.PullBinlogResp(entity=pb.pump.Entity(payload=fake.SerializeToString()))
        while context.is_active():
            time.sleep(0.05)

    def Bounds(self, request, context):
        if self.is_original:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method Bounds")
        self.asked.append(request)
        self.delay.wait(60)
        self.check_share(request, context)
        if request.cluster_id != CLUSTER_ID:
            context.abort(
                grpc.StatusCode.UNKNOWN,
                f"cluster ID are mismatch, {request.cluster_id} vs {CLUSTER_ID}",
            )
        if request.lo < self.purged_through:
            context.abort(
                grpc.StatusCode.OUT_OF_RANGE,
                f"everything through {self.purged_through} has been purged",
            )
        mark = request.fresh_ts if self.stuck_at is None else min(self.stuck_at, request.fresh_ts)
        inside = [row for row in self.rows if request.lo < row[0] <= mark]
        taken, size = [], 0
        for row in inside:
            size += len(row[2])
            if taken and (len(taken) == request.max_transactions or size > request.max_bytes):
                break
            taken.append(row)
        hi = max(request.lo, mark) if len(taken) == len(inside) else taken[-1][0]
        return pb.window.BoundsResponse(
            max_commit_ts=mark,
            hi=hi,
            transactions=len(taken),
            bytes=sum(len(row[2]) for row in taken),
            window=bytes(batch_of(taken).serialize()) if self.sends_windows else b"",
            late=[
                pb.window.LateCommit(commit_ts=commit, start_ts=start)
                for commit, start in self.late
                if commit <= request.lo
            ],
        )

    def check_share(self, request, context):
        if request.share != self.share:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"this pump has share {self.share}")

    def Read(self, request, context):
        self.check_share(request, context)
        sink = io.BytesIO()
        inside = [row for row in self.rows if request.lo < row[0] <= request.hi]
        cut = self.cuts.pop(0) if self.cuts else len(inside)
        with pa.ipc.new_stream(sink, WINDOW_SCHEMA) as writer:
            for row in inside[:cut]:
                writer.write_batch(batch_of([row]))
            whole = sink.tell()
        data = sink.getvalue()[: whole if cut < len(inside) else None]
        for at in range(0, len(data), 1000):
            yield pb.window.ReadResponse(chunk=data[at : at + 1000])
        if cut < len(inside):
            context.abort(grpc.StatusCode.CANCELLED, "others wait")

    def Digest(self, request, context):
        self.check_share(request, context)
        hi = min(request.hi, self.stuck_at or request.hi)
        if request.lo < self.purged_through:
            context.abort(grpc.StatusCode.OUT_OF_RANGE, "purged")
        if self.is_damaged:
            context.abort(grpc.StatusCode.DATA_LOSS, "a record can't be read")
        transactions, digest = digest_of(
            batch_of([row]) for row in self.rows if request.lo < row[0] <= hi
        )
        return pb.window.DigestResponse(hi=hi, transactions=transactions, digest=digest)

    def stop(self):
        self.delay.set()
        self.server.stop(None).wait()
