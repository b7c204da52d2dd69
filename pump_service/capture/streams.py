"""Carry requests to TiKV's stores, and their messages to one inbox."""

from __future__ import annotations

import logging
import threading
from collections import deque
from queue import SimpleQueue
from typing import Any, NamedTuple

import grpc

from sluice.errors import SluiceError
from sluice.pump_service.capture.subscriptions import Send
from sluice.tidb import pb
from sluice.tidb.pd import PDClient, PDError, Region
from sluice.tidb.rpc import TLS, describe, open_channel, status

_log = logging.getLogger(__name__)

METHOD = "/cdcpb.ChangeData/EventFeedV2"
METADATA = (("features", "stream-multiplexing"),)
_INBOX_BYTES = 64 << 20
"""Bytes of messages that wait for the matcher; beyond, streams wait, and TiKV keeps the rest."""


class Message(NamedTuple):
    """Hold a ChangeDataEvent as it came; `payload` None: the stream has ended.

    `refusal` is why the store will never serve this client, "" if it may.
    """

    store_id: int
    stream: int
    payload: bytes | None
    refusal: str = ""


class Located(NamedTuple):
    """Hold PD's regions of [start, end); None: PD didn't answer."""

    start: bytes
    end: bytes
    regions: list[Region] | None


class Inbox:
    """Queue what comes for the matcher's thread, up to `_INBOX_BYTES`."""

    def __init__(self) -> None:
        self._items: deque[Message | Located] = deque()
        self._changed = threading.Condition()
        self._bytes = 0
        self._is_closed = False
        self.received_bytes = 0

    def put(self, item: Message | Located) -> None:
        """Add an item; a message waits while the inbox is full."""
        size = len(item.payload) if isinstance(item, Message) and item.payload else 0
        with self._changed:
            if size:
                self._changed.wait_for(lambda: self._bytes < _INBOX_BYTES or self._is_closed)
            self._bytes += size
            self.received_bytes += size
            self._items.append(item)
            if len(self._items) == 1:
                self._changed.notify_all()

    def take(self, timeout_s: float) -> list[Message | Located]:
        """Take everything out, waiting up to `timeout_s` for the first item."""
        with self._changed:
            if not self._items:
                self._changed.wait_for(lambda: self._items or self._is_closed, timeout_s)
            taken = list(self._items)
            self._items.clear()
            self._bytes = 0
            self._changed.notify_all()
        return taken

    def close(self) -> None:
        """Wake up all waiting threads."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class StoreStreams:
    """Hold one stream a store. One thread calls `send`; `close` ends all."""

    def __init__(self, pd: PDClient, inbox: Inbox, tls: TLS | None) -> None:
        self._pd, self._inbox, self._tls = pd, inbox, tls
        self._open: dict[int, _StoreStream] = {}

    def send(self, action: Send) -> None:
        """Send a request on its stream. Returns at once; a lost stream is reported to the inbox."""
        found = self._open.get(action.store_id)
        if found is None or found.number != action.stream:
            if found is not None:
                found.close()
            found = _StoreStream(action.store_id, action.stream, self._pd, self._inbox, self._tls)
            self._open[action.store_id] = found
        found.requests.put(action.request)

    def close(self) -> None:
        """End all streams and wait for their threads."""
        for stream in self._open.values():
            stream.close()
        for stream in self._open.values():
            stream.thread.join(5)


class _StoreStream:
    def __init__(
        self, store_id: int, number: int, pd: PDClient, inbox: Inbox, tls: TLS | None
    ) -> None:
        self.store_id, self.number = store_id, number
        self._pd, self._inbox, self._tls = pd, inbox, tls
        self.requests: SimpleQueue[pb.cdc.ChangeDataRequest | None] = SimpleQueue()
        self._closed = threading.Event()
        self._call: Any = None
        self.thread = threading.Thread(
            target=self._run, name=f"capture-store-{store_id}", daemon=True
        )
        self.thread.start()

    def close(self) -> None:
        self._closed.set()
        self.requests.put(None)
        if self._call is not None:
            self._call.cancel()

    def _run(self) -> None:
        why, refusal = "the stream has ended", ""
        try:
            store = self._pd.get_store(self.store_id)
            if store.state == pb.metapb.Tombstone or not store.address:
                raise PDError(f"store {self.store_id} is gone")
            with open_channel(store.address, self._tls) as channel:
                call = channel.stream_stream(
                    METHOD,
                    request_serializer=pb.cdc.ChangeDataRequest.SerializeToString,
                    response_deserializer=None,
                )
                self._call = call(iter(self.requests.get, None), metadata=METADATA)
                if self._closed.is_set():
                    self._call.cancel()
                for payload in self._call:
                    self._inbox.put(Message(self.store_id, self.number, payload))
        except grpc.RpcError as error:
            why = describe(error)
            if status(error) is grpc.StatusCode.UNIMPLEMENTED:
                refusal = f"TiKV store {self.store_id} has no multiplexed change data: {why}"
        except (SluiceError, OSError, ValueError) as error:
            why = str(error)
        if not self._closed.is_set():
            _log.warning("change data stream lost store=%d error=%s", self.store_id, why)
        self.requests.put(None)
        self._inbox.put(Message(self.store_id, self.number, None, refusal))
