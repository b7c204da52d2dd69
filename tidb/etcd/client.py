"""A client of etcd v3, as much as the pump registry needs.

PD serves etcd on its own client URLs.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from sluice.errors import SluiceError
from sluice.tidb import pb
from sluice.tidb.backoff import Backoff, Deadline
from sluice.tidb.grpc_lite import UnaryEndpoint
from sluice.tidb.rpc import TLS, Channels, ClosedError, describe, split_urls, status


class EtcdError(SluiceError):
    """etcd could not answer. The message names the call, the key and the last failure."""

    transient = True
    hint = "see whether PD (its etcd) runs at pd-urls and can be reached from here"


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key with its value and the store revisions at which it was created and last changed."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int


@dataclass(frozen=True, slots=True)
class KeyListing:
    """The keys under a prefix, ascending, as of a store revision.

    A watch goes on from revision + 1.
    """

    items: tuple[KeyValue, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change. `deleted`: only key and mod_revision of `item` mean something."""

    deleted: bool
    item: KeyValue


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Changes up to a revision, in order.

    With `resync` they are instead all keys that exist: forget the others.
    """

    revision: int
    events: tuple[WatchEvent, ...]
    resync: bool = False


_RETRIED = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
}


class EtcdClient:
    """A thread-safe client of etcd.

    `urls` as for PDClient; `timeout_s` bounds a call with its retries over all of them. Without
    `retries` every URL is tried once: for callers that retry by themselves.

    All calls raise EtcdError.
    """

    def __init__(
        self,
        urls: Sequence[str] | str,
        *,
        tls: TLS | None = None,
        timeout_s: float = 5.0,
        retries: bool = True,
    ) -> None:
        self._urls = split_urls(urls)
        self._timeout_s = timeout_s
        self._retries = retries
        self._lock = threading.Lock()
        self._channels = Channels(tls)
        self._current = 0
        self._closed = threading.Event()
        self._watches: set[EtcdWatch] = set()
        self._is_plain = tls is None
        self._unary: UnaryEndpoint | None = None
        self._unary_lock = threading.Lock()

    def get(self, key: str) -> KeyValue | None:
        """Return the key's value, None if there is no such key."""
        request = pb.etcd.RangeRequest(key=key.encode())
        response = self._call("KV/Range", key, request, pb.etcd.RangeResponse)
        return _item(response.kvs[0]) if response.kvs else None

    def range_prefix(self, prefix: str) -> KeyListing:
        """Return all keys that begin with `prefix`."""
        request = pb.etcd.RangeRequest(key=prefix.encode(), range_end=_prefix_end(prefix.encode()))
        response = self._call_unary("KV/Range", request, pb.etcd.RangeResponse)
        if response is None:
            response = self._call("KV/Range", prefix, request, pb.etcd.RangeResponse)
        return KeyListing(tuple(_item(kv) for kv in response.kvs), response.header.revision)

    def put(self, key: str, value: bytes) -> int:
        """Write a key whether it exists or not, and return the store revision of the write."""
        request = pb.etcd.PutRequest(key=key.encode(), value=value)
        return int(self._call("KV/Put", key, request, pb.etcd.PutResponse).header.revision)

    def create(self, key: str, value: bytes) -> bool:
        """Write a key only if there is none, and return whether it was written.

        When an attempt was lost on the way, an existing key that holds this very value and never
        changed counts as created.
        """
        succeeded, lost_attempt = self._put_if(key, value, pb.etcd.Compare.EQUAL)
        if not succeeded and lost_attempt:
            found = self.get(key)
            return found is not None and found.version == 1 and found.value == value
        return succeeded

    def update(self, key: str, value: bytes) -> bool:
        """Write a key only if there is one. False if there is none."""
        return self._put_if(key, value, pb.etcd.Compare.GREATER)[0]

    def delete(self, key: str) -> bool:
        """Remove a key. False if there was none (or a lost attempt had removed it already)."""
        request = pb.etcd.DeleteRangeRequest(key=key.encode())
        return bool(self._call("KV/DeleteRange", key, request, pb.etcd.DeleteRangeResponse).deleted)

    def watch_prefix(self, prefix: str, start_revision: int | None = None) -> EtcdWatch:
        """Follow the keys under a prefix.

        The iterator of WatchBatch ends with its close() or the client's. It begins at
        `start_revision` (`listing.revision + 1`); None: with a `resync` batch of the present keys,
        then the changes. Lost connections are resumed where they broke. If etcd has compacted the
        missed changes, a `resync` batch comes in their place.
        """
        watch = EtcdWatch(self, prefix, start_revision)
        with self._lock:
            if self._closed.is_set():
                raise EtcdError("the etcd client is closed")
            self._watches.add(watch)
        return watch

    def close(self) -> None:
        """End all watches and close the connections."""
        self._closed.set()
        with self._lock:
            watches, self._watches = self._watches, set()
        for watch in watches:
            watch.close()
        self._channels.close()
        lean = self._unary
        if lean is not None:
            lean.close()

    def __enter__(self) -> EtcdClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _put_if(
        self, key: str, value: bytes, result: pb.etcd.Compare.CompareResult
    ) -> tuple[bool, bool]:
        raw = key.encode()
        request = pb.etcd.TxnRequest(
            compare=[
                pb.etcd.Compare(result=result, target=pb.etcd.Compare.MOD, key=raw, mod_revision=0)
            ],
            success=[pb.etcd.RequestOp(request_put=pb.etcd.PutRequest(key=raw, value=value))],
        )
        lost: list[str] = []
        response = self._call("KV/Txn", key, request, pb.etcd.TxnResponse, lost)
        return bool(response.succeeded), bool(lost)

    def _endpoint(self) -> tuple[str, grpc.Channel]:
        with self._lock:
            if self._closed.is_set():
                raise EtcdError("the etcd client is closed")
            url = self._urls[self._current % len(self._urls)]
        try:
            return url, self._channels.get(url)
        except ClosedError as error:
            raise EtcdError("the etcd client is closed") from error
        except OSError as error:
            raise EtcdError(f"TLS to etcd at {url}: {error}") from error

    def _next_endpoint(self) -> None:
        with self._lock:
            self._current += 1

    def _call_unary(self, method: str, request: Any, response_type: Any) -> Any:
        """Return the answer to a call that reads; None where `_call` has to make it."""
        if (
            not self._is_plain
            or self._closed.is_set()
            or not self._unary_lock.acquire(blocking=False)
        ):
            return None
        try:
            url = self._urls[self._current % len(self._urls)]
            lean = self._unary
            if lean is None or lean.url != url:
                if lean is not None:
                    lean.close()
                lean = self._unary = UnaryEndpoint(url, min(self._timeout_s / 4, 1.0))
            answer = lean.call(f"/etcdserverpb.{method}", request.SerializeToString())
            return None if answer is None else response_type.FromString(answer)
        except DecodeError:
            return None
        finally:
            self._unary_lock.release()

    def _call(
        self, method: str, key: str, request: Any, response_type: Any, lost: list[str] | None = None
    ) -> Any:
        backoff = Backoff(Deadline(self._timeout_s), self._closed.wait)
        attempt = 0
        while True:
            attempt += 1
            url, channel = self._endpoint()
            attempt_s = max(0.05, min(max(self._timeout_s / 2, 0.2), backoff.deadline.left()))
            try:
                call = channel.unary_unary(
                    f"/etcdserverpb.{method}",
                    request_serializer=type(request).SerializeToString,
                    response_deserializer=response_type.FromString,
                )
                return call(request, timeout=attempt_s)
            except ValueError as error:
                raise EtcdError(f"{method} {key}: the etcd client is closed") from error
            except grpc.RpcError as error:
                failure = f"etcd at {url}: {method} {key}: {describe(error)}"
                if status(error) not in _RETRIED:
                    raise EtcdError(failure) from error
                if lost is not None:
                    lost.append(failure)
                self._next_endpoint()
                if not self._retries:
                    if attempt < len(self._urls):
                        continue
                    raise EtcdError(failure) from error
                if not backoff.wait("etcd", 50, 1000):
                    raise EtcdError(f"{failure} (gave up after {self._timeout_s:g} s)") from error


class EtcdWatch:
    """The iterator behind EtcdClient.watch_prefix. One thread iterates; any thread may close()."""

    def __init__(self, client: EtcdClient, prefix: str, start_revision: int | None) -> None:
        self._client = client
        self._prefix = prefix
        self._next_revision = start_revision
        self._call: Any = None
        self._closed = threading.Event()
        self._over = threading.Event()

    def __iter__(self) -> EtcdWatch:
        return self

    def __next__(self) -> WatchBatch:
        backoff = Backoff(Deadline(float("inf")), self._closed.wait)
        while not self._closed.is_set():
            try:
                batch = self._step()
            except EtcdError:  # not reachable now: a watch waits for better times
                batch = None
                self._drop_call()
                backoff.wait("list", 100, 2000)
            except (grpc.RpcError, StopIteration, ValueError):
                batch = None
                self._drop_call()
                self._client._next_endpoint()
                backoff.wait("watch", 50, 2000)
            if batch is not None:
                return batch
        raise StopIteration

    def close(self) -> None:
        """End the iteration, also one that waits in another thread."""
        self._closed.set()
        self._over.set()
        self._drop_call()
        with self._client._lock:
            self._client._watches.discard(self)

    def _step(self) -> WatchBatch | None:
        if self._next_revision is None:
            listing = self._client.range_prefix(self._prefix)
            self._next_revision = listing.revision + 1
            return WatchBatch(
                listing.revision,
                tuple(WatchEvent(deleted=False, item=kv) for kv in listing.items),
                resync=True,
            )
        if self._call is None:
            self._open()
        response: pb.etcd.WatchResponse = next(self._call)
        if response.canceled:
            self._drop_call()
            if response.compact_revision:
                self._next_revision = None
                return None
            raise ValueError(response.cancel_reason or "etcd cancelled the watch")
        if response.created and response.header.revision + 1 < (self._next_revision or 0):
            # The store is younger than what we have seen: it was lost and set up again. Waiting for
            # our revision would skip all that happens until then.
            self._drop_call()
            self._next_revision = None
            return None
        if not response.events:
            return None
        events = tuple(
            WatchEvent(event.type == event.DELETE, _item(event.kv)) for event in response.events
        )
        revision = max(event.item.mod_revision for event in events)
        self._next_revision = revision + 1
        return WatchBatch(revision, events)

    def _open(self) -> None:
        _, channel = self._client._endpoint()
        key = self._prefix.encode()
        over = self._over = threading.Event()
        create = pb.etcd.WatchCreateRequest(
            key=key, range_end=_prefix_end(key), start_revision=self._next_revision or 0
        )

        def requests() -> Any:
            yield pb.etcd.WatchRequest(create_request=create)
            over.wait()  # etcd ends the watch when the requests end

        self._call = channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=pb.etcd.WatchRequest.SerializeToString,
            response_deserializer=pb.etcd.WatchResponse.FromString,
        )(requests())
        # close() may have run just before the call was there to be cancelled
        if self._closed.is_set():
            self._drop_call()
            raise StopIteration

    def _drop_call(self) -> None:
        self._over.set()
        call, self._call = self._call, None
        if call is not None:
            call.cancel()


def _item(kv: pb.mvcc.KeyValue) -> KeyValue:
    return KeyValue(
        kv.key.decode(errors="surrogateescape"),
        kv.value,
        kv.create_revision,
        kv.mod_revision,
        kv.version,
    )


def _prefix_end(prefix: bytes) -> bytes:
    """Return the first key behind a prefix; a single zero byte means "to the end"."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b"\x00"
