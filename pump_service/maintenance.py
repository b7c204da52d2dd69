"""Write fake binlogs, collect garbage, push metrics, and wait until the pump may go offline."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Sequence

from sluice.errors import SluiceError
from sluice.pump_service.cluster import OFFLINE, Membership
from sluice.pump_service.config import Config
from sluice.pump_service.ingest import BinlogIngest
from sluice.pump_service.metrics import PumpMetrics, push
from sluice.pump_service.store import Record, Store
from sluice.tidb import pb, tso
from sluice.tidb.etcd import NodeStatus

_log = logging.getLogger(__name__)

_DRAINER_CHECK_INTERVAL_S = 600.0
_CHECKS_PER_GC = 6  # one garbage collection an hour
_LATE_DRAINER_S = 72_000.0  # drainers this close to the purged range are reported
_CHECK_INTERVAL_S = 1.0
_REPORT_INTERVAL_S = 30.0
_WRITE_TIMEOUT_S = 10.0


def fake_binlog(ts: int) -> Record:
    """Return a binlog without changes, which shows that all commits up to `ts` are written.

    Its start_ts equals its commit_ts.
    """
    message = pb.binlog.Binlog(
        tp=pb.binlog.Rollback, start_ts=ts, commit_ts=ts, ddl_job_id=0, ddl_schema_state=0
    )
    return Record(2, ts, ts, message.SerializeToString())


class MaintenanceTasks:
    """Run the background threads. Failures are logged and retried in the next round."""

    def __init__(
        self,
        config: Config,
        membership: Membership,
        store: Store,
        ingest: BinlogIngest,
        metrics: PumpMetrics,
    ) -> None:
        self._config = config
        self._node_id = membership.node_id
        self._registry, self._clock = membership.registry, membership.clock
        self._store = store
        self._ingest = ingest
        self._metrics = metrics
        self.drained_ts: int | None = None
        self._stop = threading.Event()
        self._collecting = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads."""
        targets = [("pump-gc", self._watch_drainers)]
        if not self._store.is_captured:
            targets.append(("pump-fakes", self._write_fakes))
        for name, target in targets:
            thread = threading.Thread(target=target, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        if self._config.metrics_addr:
            self._threads.append(threading.Thread(target=self._push, name="pump-push", daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """Stop the threads; the first call waits up to 1 s for their current work."""
        if self._stop.is_set():
            return
        self._stop.set()
        deadline = time.monotonic() + 1.0
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))

    def write_fake(self) -> int:
        """Write a fake binlog, wait until it is durable, and return its TSO.

        In a captured store only the capture may write one: there this returns through what it has
        come, also if an error has ended it. Raises TimeoutError, and the errors of PD and of the
        store.
        """
        if self._store.is_captured:
            return self._store.max_commit_ts
        return self._write_fake_at(self._clock.fresh())

    def write_first(self, capture_from_ts: int = 0) -> int:
        """Write the first record of an empty store, a fake binlog; return its TSO.

        A capture goes on from there: from `capture_from_ts`, or from now on if that is 0.
        """
        ts = capture_from_ts or self._clock.fresh()
        if self._store.is_captured:
            self._store.begin_at(ts)
        return self._write_fake_at(ts)

    def _write_fake_at(self, ts: int) -> int:
        durable = threading.Event()
        answer: list[BaseException | None] = []

        def done(error: BaseException | None) -> None:
            answer.append(error)
            durable.set()

        self._store.submit([fake_binlog(ts)], done)
        if not durable.wait(_WRITE_TIMEOUT_S):
            raise TimeoutError(f"a fake binlog was not durable after {_WRITE_TIMEOUT_S:.0f} s")
        if answer[0] is not None:
            raise answer[0]
        return ts

    def wait_safe_to_offline(self, hurry: threading.Event) -> bool:
        """Wait until every drainer that isn't offline has read all data of this pump.

        Sets `drained_ts` to that position. Returns False if `hurry` is set first.
        """
        ts = None
        while ts is None:
            try:
                ts = self.write_fake()
            except Exception as error:
                _log.error("going offline: can't write a fake binlog, retrying: %s", error)
                if hurry.wait(_CHECK_INTERVAL_S):
                    return False
        while self._store.max_commit_ts < ts or not (
            self._store.is_captured or self._store.all_matched()
        ):
            if hurry.wait(0.1):
                return False
        last = self._store.max_commit_ts
        reported = 0.0
        while True:
            try:
                behind = [
                    d
                    for d in self._registry.drainers()
                    if d.state != OFFLINE and d.max_commit_ts < last
                ]
                if not behind:
                    self.drained_ts = last
                    return True
                if time.monotonic() - reported >= _REPORT_INTERVAL_S:
                    reported = time.monotonic()
                    _log.info(
                        "going offline: waiting for %s to reach commit ts %d",
                        ", ".join(f"{d.node_id} ({d.state}, at {d.max_commit_ts})" for d in behind),
                        last,
                    )
                self.write_fake()  # keeps the drainers moving
            except Exception as error:
                _log.error("going offline: retrying: %s", error)
            if hurry.wait(_CHECK_INTERVAL_S):
                return False

    def collect_garbage(self) -> bool:
        """Start a round in the background; return False if one is running."""
        if not self._collecting.acquire(blocking=False):
            return False
        threading.Thread(target=self._collect, name="pump-gc-round", daemon=True).start()
        return True

    def _collect(self) -> None:
        try:
            # The earlier of two clocks, so that no single wrong clock purges recent data.
            now_ms = min(int(time.time() * 1000), tso.physical_ms(self._clock.fresh()))
            until = tso.span(now_ms - int(self._config.gc_s * 1000))
            readers = self._readers()
            for reader in readers:
                if reader.max_commit_ts < until:
                    _log.warning(
                        "garbage collection stops at commit ts %d, the position of drainer %s (%s);"
                        " if that drainer is gone for good: `sluice drainers offline %s --gone`",
                        reader.max_commit_ts,
                        reader.node_id,
                        reader.state,
                        reader.node_id,
                    )
                    until = reader.max_commit_ts
            if until > 0:
                self._store.gc(until)
            self._check(readers)
        except SluiceError as error:  # etcd or PD is unreachable
            _log.warning("garbage collection is skipped until the next round: %s", error)
        except Exception:
            _log.exception("garbage collection failed")
        finally:
            self._collecting.release()

    def _readers(self) -> list[NodeStatus]:
        return [drainer for drainer in self._registry.drainers() if drainer.state != OFFLINE]

    def _check(self, readers: Sequence[NodeStatus]) -> None:
        """Report drainers close to the purged range.

        Garbage collection waits for them, so the disk fills.
        """
        gc_ts = self._store.gc_ts
        margin_ms = int(min(_LATE_DRAINER_S, self._config.gc_s / 8) * 1000)
        for reader in readers:
            if gc_ts and reader.max_commit_ts < gc_ts + tso.span(margin_ms):
                counts = self._metrics.late_drainers
                counts[reader.node_id] = counts.get(reader.node_id, 0) + 1
                _log.error(
                    "drainer %s (%s) is at commit ts %d, close to the purged range, which ends at"
                    " %d: garbage collection waits for it, so the disk fills; start the drainer, or"
                    " if it is gone for good: `sluice drainers offline %s --gone`",
                    reader.node_id,
                    reader.state,
                    reader.max_commit_ts,
                    gc_ts,
                    reader.node_id,
                )

    def _watch_drainers(self) -> None:
        for turn in itertools.count(1):
            if self._stop.wait(_DRAINER_CHECK_INTERVAL_S):
                return
            if turn % _CHECKS_PER_GC == 0:
                self.collect_garbage()
                continue
            try:
                self._check(self._readers())
            except Exception as error:
                _log.error("can't check the drainers' positions: %s", error)

    def _write_fakes(self) -> None:
        reported = 0.0
        while True:
            asleep = time.monotonic()
            if self._stop.wait(self._config.gen_binlog_interval):
                return
            if self._ingest.last_call >= asleep:
                continue
            try:
                self.write_fake()
            except Exception as error:
                if time.monotonic() - reported >= _REPORT_INTERVAL_S:
                    reported = time.monotonic()
                    _log.error("can't write a fake binlog, retrying: %s", error)

    def _push(self) -> None:
        reported = 0.0
        while not self._stop.wait(self._config.metrics_interval):
            try:
                push(self._config.metrics_addr, self._node_id, self._metrics.registry)
            except Exception as error:
                if time.monotonic() - reported >= _REPORT_INTERVAL_S:
                    reported = time.monotonic()
                    _log.error("can't push metrics to %s: %s", self._config.metrics_addr, error)
