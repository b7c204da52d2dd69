"""Queue what one connection to a stand-in TiKV is sent of changes, subscription by subscription.

A subscription is live from its registration on. The rows of its scan are a snapshot taken then,
and come between live events, so that a COMMIT may come before the PREWRITE that the scan has of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc

from sluice.devstack.tidb.mvcc_records import Applied
from sluice.devstack.tidb.regions import Region
from sluice.tidb import pb

MAX_SHORT_VALUE_BYTES = 255
"""A COMMIT repeats values up to this size, never longer ones."""
_MAX_EVENT_BYTES = 32 << 10
_MAX_EVENTS_A_MESSAGE, _MAX_MESSAGE_BYTES = 64, 6 << 20
_ROWS_A_CHUNK = 64
_RESOLVED_BATCHES = (8, 32, 128)
"""Regions in a ResolvedTs: the slowest 8, then 32, then 128 each."""
_CDC_SOURCE_MASK, _LOSSY_DDL_MASK = 0xFF, 0xFF00
"""Bits of txn_source: written by a change feed; rewritten by a change of a column's type."""

_Log = pb.cdc.Event.LogType


@dataclass(slots=True, eq=False)
class Subscription:
    """One region that one stream listens to under one request id. `start`, `end`: raw keys."""

    stream: Stream
    request_id: int
    region: Region
    start: bytes
    end: bytes
    checkpoint_ts: int
    filter_loop: bool = False
    is_initialized: bool = False
    is_silent: bool = False
    """The subscription hangs: nothing is sent for it any more, and no error."""
    is_ended: bool = False
    locks: dict[int, set[bytes]] = field(default_factory=dict)

    def take(self, rows: Iterable[Applied]) -> None:
        """Follow a command: send its rows in range, and know which locks are open."""
        own = [
            row for row in rows if self.start <= row.key and (not self.end or row.key < self.end)
        ]
        for row in own:
            self.track(row)
        self.send(own)

    def track(self, row: Applied) -> None:
        """Note the lock that a row sets or removes."""
        if row.kind == _Log.PREWRITE:
            self.locks.setdefault(row.start_ts, set()).add(row.key)
        elif row.kind in (_Log.COMMIT, _Log.ROLLBACK) and row.start_ts in self.locks:
            self.locks[row.start_ts].discard(row.key)
            if not self.locks[row.start_ts]:
                del self.locks[row.start_ts]

    def resolved(self, ts: int) -> int:
        """Return the timestamp through which everything has been sent, `ts` at most."""
        return min([ts, *self.locks])

    def send(self, rows: Iterable[Applied]) -> None:
        """Send rows as events of at most 32 KiB, unless a row alone is larger."""
        event, size = self._event(), 0
        for row in rows:
            made = self._row(row)
            if made is None:
                continue
            row_bytes = len(made.key) + len(made.value) + len(made.old_value) + 32
            if size and size + row_bytes > _MAX_EVENT_BYTES:
                self._send_event(event, size)
                event, size = self._event(), 0
            event.entries.entries.append(made)
            size += row_bytes
        if size:
            self._send_event(event, size)

    def initialize(self) -> None:
        """Send the end of the scan: from now on its resolved timestamps may be sent."""
        event = self._event()
        event.entries.entries.add(type=_Log.INITIALIZED)
        self._send_event(event, 0)
        self.is_initialized = True

    def end_with(self, error: pb.cdc.Error) -> None:
        """Send the error, and nothing more."""
        event = self._event()
        event.error.CopyFrom(error)
        self._send_event(event, 0)
        self.is_ended = True
        self.stream.forget(self)

    def _send_event(self, event: pb.cdc.Event, size: int) -> None:
        if not self.is_silent and not self.is_ended:
            self.stream.put(event, size)

    def _event(self) -> pb.cdc.Event:
        return pb.cdc.Event(region_id=self.region.id, request_id=self.request_id)

    def _row(self, row: Applied) -> pb.cdc.Event.Row | None:
        if row.txn_source & _LOSSY_DDL_MASK:
            return None
        if self.filter_loop and row.txn_source & _CDC_SOURCE_MASK:
            return None
        made = pb.cdc.Event.Row(
            start_ts=row.start_ts, commit_ts=row.commit_ts, key=row.key, txn_source=row.txn_source
        )
        made.type = row.kind  # type: ignore[assignment]
        if row.kind == _Log.ROLLBACK:
            return made
        made.op_type = made.OpType.DELETE if row.value is None else made.OpType.PUT
        value = row.value or b""
        if row.kind != _Log.COMMIT:
            made.value, made.old_value = value, row.old_value
        elif len(value) <= MAX_SHORT_VALUE_BYTES:
            made.value = value
        return made


class Stream:
    """One EventFeed call. `on_forgotten` is called with each subscription that ends."""

    def __init__(
        self, on_forgotten: Callable[[Subscription], None], *, is_multiplexing: bool
    ) -> None:
        self.is_multiplexing = is_multiplexing
        self.is_batching = True
        """Resolved timestamps come in messages of their own, as for clients since 4.0.8."""
        self.subscriptions: dict[tuple[int, int], Subscription] = {}
        """Subscriptions by request id and region id.

        Without multiplexing the request id is 0 here.
        """
        self.scans: deque[tuple[Subscription, list[Applied]]] = deque()
        self.queued_bytes = 0
        self._on_forgotten = on_forgotten
        self._queue: deque[tuple[pb.cdc.Event | bytes, int]] = deque()
        self._wake, self._scan_wake = asyncio.Event(), asyncio.Event()
        self._end: tuple[grpc.StatusCode, str] | None = None

    def find(self, request_id: int, region_id: int) -> Subscription | None:
        """Return the subscription, if there is one."""
        return self.subscriptions.get((request_id if self.is_multiplexing else 0, region_id))

    def add(self, made: Subscription) -> None:
        """Register a subscription."""
        key = (made.request_id if self.is_multiplexing else 0, made.region.id)
        self.subscriptions[key] = made

    def forget(self, ended: Subscription) -> None:
        """Remove a subscription."""
        key = (ended.request_id if self.is_multiplexing else 0, ended.region.id)
        if self.subscriptions.get(key) is ended:
            del self.subscriptions[key]
        self._on_forgotten(ended)

    def put(self, item: pb.cdc.Event | bytes, size: int) -> None:
        """Queue an event, or a whole message as bytes, of about `size` bytes."""
        if self._end is None:
            self._queue.append((item, size))
            self.queued_bytes += size
            self._wake.set()

    def break_off(self, code: grpc.StatusCode, why: str) -> None:
        """End the call with this status; what is queued is lost."""
        if self._end is None:
            self._end = code, why
            self._queue.clear()
            for each in list(self.subscriptions.values()):
                each.is_ended = True
                self.forget(each)
            self._wake.set()

    def send_resolved(self, ts: int, seen: Callable[[int], int]) -> None:
        """Send every subscription's resolved timestamp.

        `seen` returns what is made of it on its way.
        """
        groups: dict[int, list[tuple[int, int]]] = {}
        for each in self.subscriptions.values():
            if each.is_initialized and not each.is_silent:
                request_id = each.request_id if self.is_multiplexing or not self.is_batching else 0
                groups.setdefault(request_id, []).append((each.resolved(ts), each.region.id))
        for request_id, found in groups.items():
            found.sort()
            if not self.is_batching:
                for resolved, region_id in found:
                    event = pb.cdc.Event(
                        region_id=region_id, request_id=request_id, resolved_ts=seen(resolved)
                    )
                    self.put(event, 0)
                continue
            first, number = 0, 0
            while first < len(found):
                size = _RESOLVED_BATCHES[min(number, len(_RESOLVED_BATCHES) - 1)]
                batch = found[first : first + size]
                first, number = first + size, number + 1
                message = pb.cdc.ChangeDataEvent()
                message.resolved_ts.regions.extend(region_id for _, region_id in batch)
                message.resolved_ts.ts = seen(batch[0][0])
                message.resolved_ts.request_id = request_id
                self.put(message.SerializeToString(), 0)

    async def run_scans(self, may_go_on: asyncio.Event) -> None:
        """Send the rows of one scan after the other, a chunk at a time, and the end of each."""
        while self._end is None:
            self._scan_wake.clear()
            while self.scans:
                subscription, rows = self.scans[0]
                for first in range(0, len(rows), _ROWS_A_CHUNK):
                    await may_go_on.wait()
                    subscription.send(rows[first : first + _ROWS_A_CHUNK])
                    await asyncio.sleep(0)  # live events come between
                await may_go_on.wait()
                self.scans.popleft()
                if not subscription.is_ended:
                    subscription.initialize()
            await self._scan_wake.wait()

    def scan(self, subscription: Subscription, rows: list[Applied]) -> None:
        """Queue the scan of a new subscription."""
        self.scans.append((subscription, rows))
        self._scan_wake.set()

    async def messages(self, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        """Yield what is queued as messages; aborts the call when it was broken off."""
        while self._end is None:
            self._wake.clear()
            while self._queue:
                yield self._next_message()
            if self._end is None:
                await self._wake.wait()
        code, why = self._end
        if code is not grpc.StatusCode.OK:
            await context.abort(code, why)

    def _next_message(self) -> bytes:
        item, size = self._queue.popleft()
        self.queued_bytes -= size
        if isinstance(item, bytes):
            return item
        message = pb.cdc.ChangeDataEvent(events=[item])
        total = size
        while self._queue and len(message.events) < _MAX_EVENTS_A_MESSAGE:
            item, size = self._queue[0]
            if isinstance(item, bytes) or total + size > _MAX_MESSAGE_BYTES:
                break
            message.events.append(item)
            total += size
            self.queued_bytes -= size
            self._queue.popleft()
        made: bytes = message.SerializeToString()
        return made
