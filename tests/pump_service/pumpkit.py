"""A real etcd, a PD in front of it (members, timestamps), and pumps as child processes, for the
tests of this folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx

from sluice.pump_service.cluster import ClientLiveness, FutureTsLimit, PdClock
from sluice.tidb import pb
from sluice.tidb.etcd import EtcdClient, EtcdError, NodeStatus, Registry
from tests.ports import free_port
from tests.tidb.etcd_fixture import remove_all, without_fsync

CLUSTER = 7096212345678901234
ROOT = Path(__file__).parents[2]


class Etcd:
    """An etcd child process.

    `stop` and `start` keep its data and address, `start(fresh=True)` loses the data.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._life = 0
        self.port, self._peer = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self, *, fresh: bool = False) -> None:
        if self._process is not None:
            return
        self._life += fresh
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer}"
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "etcd",
                    "--name",
                    "one",
                    "--data-dir",
                    str(self._folder / f"data{self._life}"),
                    "--log-level",
                    "error",
                    "--listen-client-urls",
                    client,
                    "--advertise-client-urls",
                    client,
                    "--listen-peer-urls",
                    peer,
                    "--initial-advertise-peer-urls",
                    peer,
                    "--initial-cluster",
                    f"one={peer}",
                    *without_fsync(),
                ],
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + 60
        etcd = EtcdClient(client, timeout_s=1)
        while True:
            try:
                etcd.get("ready?")
                break
            except EtcdError:
                assert time.monotonic() < until, (self._folder / "etcd.log").read_text()[-2000:]
        etcd.close()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class PD:
    """PD as a pump sees it: GetMembers and Tso, and etcd's KV on the same address.

    `start` and `stop` at will.
    """

    def __init__(
        self, etcd_port: int, cluster_id: int = CLUSTER, credentials: grpc.ServerCredentials = None
    ) -> None:
        self.cluster_id = cluster_id
        self.credentials = credentials  # TLS if given; counts from the next `start` on
        self.port = free_port()
        self.url = f"{'https' if credentials else 'http'}://127.0.0.1:{self.port}"
        self._last = 0
        self._lock = threading.Lock()
        self._etcd = grpc.insecure_channel(f"127.0.0.1:{etcd_port}")
        self._server: grpc.Server | None = None
        self.more: dict[str, grpc.RpcMethodHandler] = {}
        """further methods of PD's, from the next start on"""
        self.start()

    def start(self) -> None:
        if self._server is not None:
            return
        handlers = {
            "GetMembers": grpc.unary_unary_rpc_method_handler(
                self._members,
                pb.pd.GetMembersRequest.FromString,
                pb.pd.GetMembersResponse.SerializeToString,
            ),
            "Tso": grpc.stream_stream_rpc_method_handler(
                self._tso, pb.pd.TsoRequest.FromString, pb.pd.TsoResponse.SerializeToString
            ),
        }
        for name, request, response in (
            ("GetGCSafePoint", pb.pd.GetGCSafePointRequest, pb.pd.GetGCSafePointResponse),
            (
                "UpdateServiceGCSafePoint",
                pb.pd.UpdateServiceGCSafePointRequest,
                pb.pd.UpdateServiceGCSafePointResponse,
            ),
        ):
            handlers[name] = grpc.unary_unary_rpc_method_handler(
                lambda _request, _context, response=response: response(
                    header=pb.pd.ResponseHeader(cluster_id=self.cluster_id)
                ),
                request.FromString,
                response.SerializeToString,
            )
        handlers |= self.more
        forwarded = {
            name: grpc.unary_unary_rpc_method_handler(
                lambda request, _, call=self._etcd.unary_unary(f"/etcdserverpb.KV/{name}"): call(
                    request, timeout=30
                )
            )
            for name in ("Range", "Put", "DeleteRange", "Txn")
        }
        self._server = grpc.server(
            ThreadPoolExecutor(32), options=[("grpc.http2.max_ping_strikes", 0)]
        )
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("pdpb.PD", handlers),
                grpc.method_handlers_generic_handler("etcdserverpb.KV", forwarded),
            )
        )
        address = f"127.0.0.1:{self.port}"
        if self.credentials is None:
            assert self._server.add_insecure_port(address) == self.port
        else:
            assert self._server.add_secure_port(address, self.credentials) == self.port
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def ts(self, count: int = 1) -> int:
        """The last of `count` new timestamps."""
        with self._lock:
            self._last = max(self._last + count, int(time.time() * 1000) << 18)
            return self._last

    def _members(
        self, _request: pb.pd.GetMembersRequest, _context: grpc.ServicerContext
    ) -> pb.pd.GetMembersResponse:
        member = pb.pd.Member(name="pd", member_id=1, client_urls=[self.url])
        header = pb.pd.ResponseHeader(cluster_id=self.cluster_id)
        return pb.pd.GetMembersResponse(header=header, members=[member], leader=member)

    def _tso(
        self, requests: Iterator[pb.pd.TsoRequest], _context: object
    ) -> Iterator[pb.pd.TsoResponse]:
        for request in requests:
            ts = self.ts(request.count)
            yield pb.pd.TsoResponse(
                header=pb.pd.ResponseHeader(cluster_id=self.cluster_id),
                count=request.count,
                timestamp=pb.pd.Timestamp(physical=ts >> 18, logical=ts & (1 << 18) - 1),
            )


def time_limit() -> FutureTsLimit:
    """What a pump knows of PD's clock if that is this machine's."""
    clock = PdClock(lambda: int(time.time() * 1000) << 18)
    clock.fresh()
    return FutureTsLimit(clock)


def no_origins() -> ClientLiveness:
    """Of a pump whose etcd has no TiDB."""
    return ClientLiveness(list, lambda start_ts: False)


class PumpProcess:
    """`python -m pump_service` with a data directory and a fixed address."""

    def __init__(
        self, pd: PD, data_dir: Path, *flags: str, node_id: str = "", port: int = 0
    ) -> None:
        self.pd = pd
        self.data_dir = data_dir
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.node_id = node_id or f"pump-{self.port}"
        self._flags = [
            *(
                "-addr",
                self.address,
                "-pd-urls",
                pd.url,
                "-data-dir",
                str(data_dir),
                "-node-id",
                self.node_id,
            ),
            *flags,
        ]
        self.env: dict[str, str] = {}
        self.log = data_dir.with_name(data_dir.name + ".log")
        self.process: subprocess.Popen[bytes]

    def launch(self) -> None:
        """Start without waiting."""
        env = {
            key: value for key, value in os.environ.items() if not key.startswith("PUMP_")
        } | self.env
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sluice.pump_service", *self._flags],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=env,
            )

    def start(self) -> PumpProcess:
        """Start and wait until it serves."""
        self.launch()
        until = time.monotonic() + 60
        while True:
            try:
                httpx.get(f"http://{self.address}/status", timeout=2)
                return self
            except httpx.TransportError:
                assert self.process.poll() is None and time.monotonic() < until, self.text()
                time.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self, timeout_s: float = 60) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def text(self) -> str:
        return self.log.read_text()[-8000:]


class Site:
    """An etcd, a PD and the pumps of one test module."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.etcd = Etcd(folder / "etcd")
        self.pd = PD(self.etcd.port)
        self._etcd_client = EtcdClient(f"http://127.0.0.1:{self.etcd.port}", timeout_s=30)
        self.registry = Registry(self._etcd_client)
        self.pumps: list[PumpProcess] = []

    def pump(self, name: str, *flags: str, start: bool = True, **more: object) -> PumpProcess:
        pump = PumpProcess(self.pd, self.folder / name, *flags, **more)  # type: ignore[arg-type]
        self.pumps.append(pump)
        if start:
            pump.start()
        return pump

    def entry(self, pump: PumpProcess) -> NodeStatus:
        found = self.registry.get_pump(pump.node_id)
        assert found is not None
        return found

    def reset(self, folder: Path) -> None:
        """End the pumps, bring etcd and PD back if they are away, empty the registry.

        Go on in another folder.
        """
        for pump in self.pumps:
            with contextlib.suppress(AttributeError):
                pump.kill()
        self.pumps.clear()
        self.folder = folder
        self.etcd.start()
        self.pd.start()
        remove_all(self._etcd_client, "/tidb-binlog/")

    def close(self) -> None:
        for pump in self.pumps:
            with contextlib.suppress(AttributeError):
                pump.kill()
        self._etcd_client.close()
        self.pd.stop()
        self.etcd.stop()


def binlog(tp: int, start: int, commit: int = 0, value: bytes = b"", key: bytes = b"k") -> bytes:
    """A binlog as TiDB writes it: all scalars present."""
    message = pb.binlog.Binlog(
        tp=tp, start_ts=start, commit_ts=commit, prewrite_key=key, ddl_job_id=0, ddl_schema_state=0
    )
    if value:
        message.prewrite_value = value
    return bytes(message.SerializeToString())


def request(payload: bytes, cluster_id: int = CLUSTER) -> bytes:
    return bytes(pb.pump.WriteBinlogReq(clusterID=cluster_id, payload=payload).SerializeToString())


class Client:
    """A gRPC client of a pump, as TiDB and a Drainer are.

    Each instance has a connection of its own.
    """

    def __init__(self, address: str) -> None:
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        ]
        self.channel = grpc.insecure_channel(address, options)
        self.write_raw = self.channel.unary_unary("/binlog.Pump/WriteBinlog")
        self._pull = self.channel.unary_stream(
            "/binlog.Pump/PullBinlogs",
            pb.pump.PullBinlogReq.SerializeToString,
            pb.pump.PullBinlogResp.FromString,
        )

    def write(self, payload: bytes, cluster_id: int = CLUSTER, timeout: float = 60) -> None:
        """Write one binlog; grpc.RpcError if it is refused."""
        assert self.write_raw(request(payload, cluster_id), timeout=timeout) == b""

    def transaction(self, pd: PD, value: bytes) -> tuple[int, int]:
        """Prewrite and Commit of one transaction; its start and commit ts."""
        start = pd.ts()
        self.write(binlog(0, start, value=value))
        commit = pd.ts()
        self.write(binlog(1, start, commit))
        return start, commit

    def pull(self, after: int, cluster_id: int = CLUSTER, timeout: float = 60):
        asked = pb.pump.PullBinlogReq(clusterID=cluster_id, startFrom=pb.pump.Pos(offset=after))
        return self._pull(asked, timeout=timeout)

    def pull_commits(self, after: int, count: int, timeout: float = 60) -> list[pb.binlog.Binlog]:
        """The next `count` transactions, fakes left out."""
        out = []
        stream = self.pull(after, timeout=timeout)
        for response in stream:
            found = pb.binlog.Binlog.FromString(response.entity.payload)
            if found.start_ts != found.commit_ts:
                out.append(found)
                if len(out) == count:
                    break
        stream.cancel()
        return out

    def close(self) -> None:
        self.channel.close()
