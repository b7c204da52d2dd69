"""Build the pump from its parts, start them in order, and stop them in reverse order."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from sluice.errors import SluiceError
from sluice.pump_service.calls import PullBinlogsCalls, RpcRouter, WindowCalls, WindowService
from sluice.pump_service.capture import (
    Capture,
    CaptureCluster,
    CaptureSink,
    CaptureStatus,
    make_sink,
)
from sluice.pump_service.cluster import (
    CLOSING,
    OFFLINE,
    ONLINE,
    PAUSED,
    PAUSING,
    ClientLiveness,
    FutureTsLimit,
    Heartbeat,
    Membership,
    Node,
    NodeError,
    PdClock,
    ReplicaCheck,
    ServiceSafePoint,
    TiKVResolver,
    capture_labels,
    check_cluster,
    check_share,
    node_id,
)
from sluice.pump_service.config import Config, split_addr
from sluice.pump_service.http import HttpApi, debug
from sluice.pump_service.ingest import AdmissionRules, BinlogIngest
from sluice.pump_service.listener import (
    client_tls,
)
from sluice.pump_service.maintenance import MaintenanceTasks
from sluice.pump_service.metrics import PumpMetrics
from sluice.pump_service.serving import ServedAddress, StartError
from sluice.pump_service.store import Store, failpoints
from sluice.pump_service.store.data_format import refuse_newer
from sluice.pump_service.store.errors import StoreError
from sluice.tidb import pb
from sluice.tidb.etcd import SHARE_LABEL, EtcdClient, NodeStatus, Registry, tidb_servers
from sluice.tidb.pd import PDClient, PDError
from sluice.tidb.table_shares import Share
from sluice.tidb.tikv import TiKVClient, TiKVError

_log = logging.getLogger(__name__)

_MAX_PD_ATTEMPTS = 3
_CAPTURING = "capturing"
"""State that TiDB is given if it sends binlogs to a pump that reads TiKV's changes."""
_ETCD_TIMEOUT_S = 2.0
_PD_TIMEOUT_S = 3.0
_DRAIN_TIMEOUT_S = 5.0
"""The address itself drains for less."""
_LEAVE_NOTICE_S = 0.3
_FIRST_RECORD_TIMEOUT_S = 30.0
_OUTCOME_WAIT_TIMEOUT_S = 1.0


class PumpServer:
    """Run one pump: `start`, then `wait` until it has left; any thread may call `leave`.

    `etcd_urls` is where the registry is; by default PD's own addresses, which serve etcd.
    """

    def __init__(self, config: Config, etcd_urls: Sequence[str] | str | None = None) -> None:
        self.config = config
        self.metrics = PumpMetrics()
        self.address = ""  # host:port bound
        self._etcd_urls = etcd_urls if etcd_urls is not None else config.pd_urls
        self._closers = contextlib.ExitStack()
        self._port: ServedAddress
        self._node: Node
        self._store: Store
        self._capture: Capture | None = None
        self._replicas: ReplicaCheck
        self._leaving = threading.Lock()
        self._hurry = threading.Event()
        self.notice_s = _LEAVE_NOTICE_S
        """Seconds in which Prewrites are accepted after the registry shows that the pump leaves.

        TiDB learns from the registry that a pump leaves. No call of a TiDB that has not read it yet
        may fail.
        """
        self._noticed = threading.Event()
        self._left = threading.Event()
        self._stopping = threading.Event()  # set: waiting calls return

    # start and stop

    def start(self) -> None:
        """Start everything up to serving. Raises StartError, after undoing what was done."""
        try:
            self._start()
        except (StartError, NodeError, StoreError, PDError, OSError) as error:
            self._closers.close()
            raise StartError(str(error)) from error
        except BaseException:
            self._closers.close()
            raise

    def leave(self, action: str = "pause") -> None:
        """Begin to pause (`pause`: expected back) or to go offline (`close`: for good).

        Returns at once. Only the first call counts.
        """
        if not self._leaving.acquire(blocking=False):
            return
        self._node.state = CLOSING if action == "close" else PAUSING
        threading.Thread(target=self._leave, args=(action,), name="pump-leave").start()

    def hurry(self) -> None:
        """Stop waiting for writers and drainers.

        The state stays `closing` if drainers may lack data.
        """
        self._hurry.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the pump has left; return False if `timeout_s` passes first."""
        return self._left.wait(timeout_s)

    # calls of the HTTP pages

    @property
    def node_id(self) -> str:
        """Return the id in the registry."""
        return self._node.id

    @property
    def state(self) -> str:
        """Return online, pausing, paused, closing or offline."""
        return self._node.state

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Return the registry's pumps by node id, this one with its current status."""
        found = {status.node_id: status for status in self._registry.pumps()}
        found[self._node.id] = self._node.status()
        return {key: dict(status.to_dict()) for key, status in found.items()}

    def about(self) -> dict[str, Any]:
        """Return this version, and the format of the pump's data."""
        return {
            "version": metadata.version("sluice"),
            "format": refuse_newer(Path(self.config.data_dir)),
        }

    def drainers(self) -> list[dict[str, Any]]:
        """Return the registry's drainers."""
        return [dict(status.to_dict()) for status in self._registry.drainers()]

    def capture_status(self) -> dict[str, Any] | None:
        """Return the figures of CaptureStatus; None if the pump takes binlogs."""
        return None if self._capture is None else asdict(self._captured_figures(self._capture))

    def _captured_figures(self, capture: Capture) -> CaptureStatus:
        return replace(
            capture.status(),
            replicas=self._replicas.differences(),
            share=self._node.status().captured_share,
        )

    def fresh_ts(self) -> int:
        """Return a TSO from PD."""
        return self._clock.fresh()

    def collect_garbage(self) -> bool:
        """Start a round of garbage collection; return False if one is running."""
        return self._maintenance.collect_garbage()

    def decide(self, start_ts: int, commit_ts: int) -> None:
        """Call Store.decide. Also raises ValueError for a commit_ts that PD has not issued."""
        if commit_ts > self._clock.fresh():
            raise ValueError(f"commit_ts {commit_ts} is in the future")
        self._store.decide(start_ts, commit_ts)

    def describe_binlog(self, ts: int) -> str:
        """Return the binlog stored at a timestamp and TiKV's versions of its primary key, as text.

        Raises KeyError if no binlog is stored there.
        """
        payload = self._store.lookup(ts)
        if payload is None:
            raise KeyError(f"no binlog at timestamp {ts}")
        binlog = pb.binlog.Binlog.FromString(payload)
        text = debug.binlog_text(binlog)
        if binlog.prewrite_key:
            try:
                with TiKVClient(self._pd, tls=self._tls, timeout_s=_PD_TIMEOUT_S) as tikv:
                    text += debug.mvcc_text(tikv.mvcc_get(binlog.prewrite_key))
            except TiKVError as error:
                text += f"GetMvccByEncodedKey failed: {error}\n"
        return text

    # the steps of starting

    def _start(self) -> None:
        config = self.config
        data_dir = Path(config.data_dir)
        _make_data_dir(data_dir)
        self._tls = tls = client_tls(config.security)
        self._pd = pd = self._closers.enter_context(
            PDClient(config.pd_urls, tls=tls, timeout_s=_PD_TIMEOUT_S)
        )
        cluster_id = _reach_pd(pd)
        etcd = EtcdClient(self._etcd_urls, tls=tls, timeout_s=_ETCD_TIMEOUT_S)
        self._closers.callback(etcd.close)
        beats = EtcdClient(self._etcd_urls, tls=tls, timeout_s=_ETCD_TIMEOUT_S, retries=False)
        self._closers.callback(beats.close)
        self._tikv = tikv = self._closers.enter_context(TiKVClient(pd, tls=tls))
        self._registry = Registry(etcd)
        self._clock = PdClock(pd.tso)
        time_limit = FutureTsLimit(self._clock)
        origins = ClientLiveness(
            lambda: tidb_servers(etcd), lambda start_ts: self._store.is_open(start_ts)
        )
        resolver = TiKVResolver(
            tikv, pd, max_txn_time_s=config.prewrite_timeout, is_gone=origins.is_gone
        )
        is_captured = config.capture.enabled
        storage = replace(config.storage, is_captured=is_captured)
        self._store = Store.open(data_dir, storage, None if is_captured else resolver)
        self._closers.callback(self._store.close)
        origins.old_ts = self._store.stored_ts
        # Closed before the store, so that a query to TiKV doesn't delay the store's close.
        self._closers.callback(tikv.close)
        check_cluster(data_dir, cluster_id)  # after open, which locked the directory
        share = config.capture.share if is_captured else Share()
        check_share(data_dir, share, is_empty=self._store.is_empty)
        labels = capture_labels(cluster_id, share) if self._store.is_captured else {}
        self.metrics.watch_store(self._store)
        terms = AdmissionRules(cluster_id, self._state_for_writers, time_limit)
        ingest = BinlogIngest(terms, self._store, self.metrics, origins)
        self._pulls = PullBinlogsCalls(cluster_id, self._store, self.metrics.rpc)
        windows = None
        if not failpoints.due("rpc.no_window"):  # tests: serve only what the original Pump serves
            windows = WindowCalls(
                WindowService(
                    cluster_id,
                    self._store,
                    time_limit,
                    self._stopping,
                    labels.get(SHARE_LABEL, ""),
                )
            )
        self._closers.callback(self._stopping.set)
        self._port = ServedAddress(config, RpcRouter(self._pulls, windows))
        self._closers.callback(self._port.close)
        hosts = [split_addr(each)[0] for each in (config.advertise_addr, config.addr)]
        self._port.bind(HttpApi(self, self.metrics.registry, hosts), ingest)
        self.address = self._port.address
        is_new = not (data_dir / ".node").exists()
        advertised = self._advertised()
        chosen = node_id(data_dir, config.node_id, advertised)
        membership = Membership(chosen, advertised, self._registry, self._clock)
        heartbeat = Heartbeat(Registry(beats), config.heartbeat_interval)
        self._node = Node(
            membership,
            lambda: self._store.max_commit_ts,
            heartbeat,
            tls,
            labels,
        )
        self._maintenance = MaintenanceTasks(config, membership, self._store, ingest, self.metrics)
        capture: Capture | None = None
        if is_captured:
            cluster = CaptureCluster(pd, tikv, tls, share)
            capture = Capture(
                cluster,
                self._begin_capture,
                data_dir / "capture",
                config.capture.memory,
                config.storage.stop_write_at_available_space,
            )
            self._capture = capture
            self._replicas = ReplicaCheck(
                self._store,
                NodeStatus(self._node.id, self._node.host, label=labels),
                self._registry.pumps,
                tls,
            )
            self.metrics.watch_capture(partial(self._captured_figures, capture))
        self._versions = ServiceSafePoint(
            pd,
            self._node.id,
            self._store.decided_through,
            config.gc_safepoint_ttl,
            None if capture is None else capture.fail,
        )
        _warm_up(self._clock)
        time_limit.start()
        self._closers.callback(time_limit.stop)
        origins.start()
        self._closers.callback(origins.stop)
        # Drainers must know of the pump before it takes its first binlog.
        try:
            first = partial(
                self._maintenance.write_first, config.capture.start_ts if is_captured else 0
            )
            self._node.join(first if self._store.is_empty else None)
        except NodeError:
            if is_new:
                (data_dir / ".node").unlink(missing_ok=True)  # the next start sees a new directory
            raise
        self._port.serve()
        self._maintenance.start()
        self._closers.callback(self._maintenance.stop)
        self._versions.start()
        self._closers.callback(self._versions.stop)
        if capture is not None:
            capture.start()
            self._closers.callback(capture.stop)
            self._replicas.start()
            self._closers.callback(self._replicas.stop)
        _log.info("pump %s serves cluster %d at %s", self._node.id, cluster_id, self.address)

    def _begin_capture(self) -> tuple[int, CaptureSink]:
        """Claim TiKV's history behind the store's last record; return that timestamp and a sink."""
        # An empty store's first record is durable before it counts: from 0, all history would come.
        from_ts = self._store.barrier(1, _FIRST_RECORD_TIMEOUT_S)
        if not from_ts:
            raise TimeoutError(
                f"the store's first record was not indexed after {_FIRST_RECORD_TIMEOUT_S:.0f} s"
            )
        self._versions.claim(from_ts)
        share = self.config.capture.share
        return from_ts, make_sink(
            self._store, self._pd, self._tikv, from_ts, is_shared=not share.is_whole
        )

    def _advertised(self) -> str:
        """Return the address for others; its port is the bound one if the settings name none."""
        host, port = split_addr(self.config.advertise_addr)
        return self.config.advertise_addr if port else f"{host}:{self.address.rsplit(':', 1)[1]}"

    # the steps of leaving

    def _leave(self, action: str) -> None:
        try:
            self._node.announce()
            state = PAUSED
            self._hurry.wait(self.notice_s)
            self._noticed.set()  # from now on Prewrites are rejected
            self._port.settle()
            if action == "close":
                safe = self._maintenance.wait_safe_to_offline(self._hurry)
                state = OFFLINE if safe else CLOSING
            else:
                self._await_outcomes()
            self._stopping.set()
            self._pulls.stop()
            drained = self._port.drain()
            self._node.leave(state, self._maintenance.drained_ts)
            self._maintenance.stop()
            with contextlib.suppress(TimeoutError):
                drained.result(_DRAIN_TIMEOUT_S)
            self._versions.stop(give_up=self._needs_no_versions(state))
            self._node.wait_left()
            self._closers.close()
            _log.info("pump %s has left, %s", self._node.id, state)
        except Exception:
            _log.exception("the pump did not stop cleanly; all acknowledged binlogs are on disk")
        finally:
            self._left.set()

    def _needs_no_versions(self, state: str) -> bool:
        """Return whether TiKV need not keep versions for this pump, which has left as `state`.

        The last pump that captures the cluster keeps its claim for as long as it lasts: the next
        one can begin where this one ended.
        """
        if not self._store.is_captured:
            return state == OFFLINE or self._store.all_matched()
        if state != OFFLINE:
            return False
        try:
            others = [pump for pump in self._registry.pumps() if pump.node_id != self._node.id]
        except SluiceError as error:
            _log.warning("the claim on TiKV's history stays, others are unknown: %s", error)
            return False
        return any(
            pump.state == ONLINE and pump.is_replica_of(self._node.status()) for pump in others
        )

    def _state_for_writers(self) -> str:
        """Return the state that decides which binlogs are accepted; with [capture] none is."""
        if self._store.is_captured:
            return _CAPTURING
        state = self._node.state
        return ONLINE if state in (PAUSING, CLOSING) and not self._noticed.is_set() else state

    def _await_outcomes(self) -> None:
        """Wait briefly for the Commits of the last Prewrites, which are usually on their way."""
        until = time.monotonic() + _OUTCOME_WAIT_TIMEOUT_S
        while not self._store.all_matched() and time.monotonic() < until:
            if self._hurry.wait(0.01):
                return


def _make_data_dir(data_dir: Path) -> None:
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"can't create the data directory {data_dir}: {error.strerror}") from None


def _reach_pd(pd: PDClient) -> int:
    """Return the cluster id, retrying a few times."""
    for left in range(_MAX_PD_ATTEMPTS - 1, -1, -1):
        try:
            return pd.cluster_id
        except PDError as error:
            if not left:
                raise StartError(f"can't reach PD (setting pd-urls): {error}") from error
            _log.warning("can't reach PD, %d attempts left: %s", left, error)
            time.sleep(1.0)
    raise AssertionError


def _warm_up(clock: PdClock) -> None:
    try:
        clock.fresh()
    except PDError as error:
        raise StartError(f"PD issues no timestamp: {error}") from error
