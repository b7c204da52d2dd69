"""Compare what this pump captured with the other pumps that capture the same cluster.

All of them should hold the same transactions, byte by byte. A difference is a fault of one of them,
which no reader sees: each reads one pump. Of two pumps the one with the greater node id compares
them, range by range, once both are complete through its end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc
import pyarrow as pa

from sluice.errors import SluiceError
from sluice.pump_service.store.errors import StoreError, WindowPurgedError
from sluice.pump_service.store.records import WindowReach
from sluice.tidb import tso
from sluice.tidb.etcd import NodeStatus
from sluice.tidb.pumps import PumpReader, PumpReadError
from sluice.tidb.rpc import TLS, status
from sluice.tidb.window_schema import digest_of

_log = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 5.0
_MAX_TRANSACTIONS, _MAX_BYTES = 1 << 20, 32 << 20
"""Limits of one range: a pump reads it in a fraction of a second."""
_REACH_TSO = tso.span(3_600_000)
"""How far back a pump begins to compare: a restart forgets how far it had come."""
_ANSWER_TIMEOUT_S = 30.0
_REPORT_INTERVAL_S = 600.0


class ComparedStore(Protocol):
    """Declare the methods of the store that are needed."""

    @property
    def max_commit_ts(self) -> int: ...

    @property
    def gc_ts(self) -> int: ...

    def bounds(self, lo: int, hi: int, max_transactions: int, max_bytes: int) -> WindowReach: ...

    def read_window(self, lo: int, hi: int, *, strict: bool) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True, slots=True)
class _Compared:
    """Hold how far another pump was compared (TSO), and the first difference."""

    through_ts: int
    difference: str = ""


def _is_purged(error: PumpReadError | StoreError) -> bool:
    """Return whether one of two pumps doesn't have the range any more, or began behind it."""
    return (
        isinstance(error, WindowPurgedError)
        or status(error.__cause__ or error) == grpc.StatusCode.OUT_OF_RANGE
    )


class ReplicaCheck:
    """Compare in a thread, from `start` to `stop`."""

    def __init__(
        self,
        store: ComparedStore,
        own: NodeStatus,
        pumps: Callable[[], Sequence[NodeStatus]],
        tls: TLS | None,
    ) -> None:
        """Create the replica check.

        `own` is this pump's entry in the registry, `pumps` returns all of them.
        """
        self._store, self._pumps, self._tls = store, pumps, tls
        self._own, self._node_id = own, own.node_id
        self._states: dict[str, _Compared] = {}
        self._reported: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pump-replicas", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread soon."""
        self._stop.set()

    def differences(self) -> dict[str, str]:
        """Return the first difference from each pump that was compared; "" without one."""
        return {node_id: state.difference for node_id, state in dict(self._states).items()}

    def check(self) -> None:
        """Compare with each running pump of a smaller node id, as far as both are complete.

        Raises EtcdError and RegistryError. Pumps that can't be asked are compared later.
        """
        for pump in self._pumps():
            if (
                pump.is_replica_of(self._own)
                and pump.node_id < self._node_id
                and pump.state == "online"
            ):
                try:
                    with PumpReader(
                        pump.host,
                        self._own.captured_cluster_id or 0,
                        tls=self._tls,
                        timeout_s=_ANSWER_TIMEOUT_S,
                        share=pump.captured_share,
                    ) as reader:
                        self._compare(pump.node_id, reader)
                except (PumpReadError, StoreError) as error:
                    if _is_purged(error):  # it can't be compared any more
                        self._begin(pump.node_id, self._store.max_commit_ts)
                    self._report(pump.node_id, error)

    def _begin(self, node_id: str, through_ts: int) -> _Compared:
        former = self._states.get(node_id)
        state = _Compared(through_ts, former.difference if former is not None else "")
        self._states[node_id] = state
        return state

    def _compare(self, node_id: str, reader: PumpReader) -> None:
        store = self._store
        state = self._states.get(node_id) or self._begin(
            node_id, max(store.gc_ts, store.max_commit_ts - _REACH_TSO)
        )
        while not self._stop.is_set():
            lo = state.through_ts
            hi = store.bounds(lo, store.max_commit_ts, _MAX_TRANSACTIONS, _MAX_BYTES).hi
            if hi <= lo:
                return
            hi, *theirs = reader.digest(lo, hi)
            if hi <= lo:
                return
            difference = state.difference
            if [*digest_of(store.read_window(lo, hi, strict=True))] != theirs and not difference:
                difference = self._describe(node_id, reader, lo, hi)
                _log.error(
                    "captured changes differ pump=%s other_pump=%s difference=%r",
                    self._node_id,
                    node_id,
                    difference,
                )
            state = self._states[node_id] = _Compared(hi, difference)

    def _describe(self, node_id: str, reader: PumpReader, lo: int, hi: int) -> str:
        """Return the first commit ts in (lo, hi] at which the pumps differ, as text."""

        def both(middle: int) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
            _, transactions, digest = reader.digest(lo, middle)
            return digest_of(self._store.read_window(lo, middle, strict=True)), (
                transactions,
                digest,
            )

        while hi - lo > 1:
            middle = (lo + hi) // 2
            mine, theirs = both(middle)
            lo, hi = (middle, hi) if mine == theirs else (lo, middle)
        here, there = (count for count, _ in both(hi))
        what = (
            f"{here} transactions here, {there} there"
            if here != there
            else f"the contents of {here} transactions"
        )
        return f"pump {node_id} differs at commit ts {hi}, {tso.text(hi)}: {what}"

    def _run(self) -> None:
        while not self._stop.wait(_CHECK_INTERVAL_S):
            try:
                self.check()
            except SluiceError as error:
                self._report("", error)

    def _report(self, node_id: str, error: SluiceError) -> None:
        if time.monotonic() - self._reported.get(node_id, -_REPORT_INTERVAL_S) < _REPORT_INTERVAL_S:
            return
        self._reported[node_id] = time.monotonic()
        _log.warning("replicas not compared now other_pump=%s error=%s", node_id or "-", error)
