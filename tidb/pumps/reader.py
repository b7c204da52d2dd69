"""The reading side of a pump.

A Sluice pump serves windows in bulk; PullBinlogs is served by any pump.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from sluice.errors import SluiceError
from sluice.tidb import pb
from sluice.tidb.grpc_lite import UnaryConnection, UnaryEndpoint, UseFullGrpc
from sluice.tidb.pumps.chunk_file import ChunkFile, SilenceGuard
from sluice.tidb.rpc import TLS, describe, open_channel, status

if TYPE_CHECKING:
    import pyarrow

_Bytes = bytes
_STREAM_BUFFER = 1 << 20
_UNARY_TIMEOUT_S = 1.0


class PumpReadError(SluiceError):
    """A pump could not be read. The message names the pump, the range and the failure.

    `unimplemented`: the pump doesn't know the call; it is an original pump, read it with `pull`.
    """

    transient = True
    hint = "start the pump again, or look into its log"

    def __init__(self, message: str, *, unimplemented: bool = False) -> None:
        super().__init__(message)
        self.unimplemented = unimplemented


@dataclass(frozen=True, slots=True)
class WindowBounds:
    """The bounds of a window: (lo, hi] holds `transactions` with `bytes` of payload.

    hi <= max_commit_ts.
    """

    max_commit_ts: int
    hi: int
    transactions: int
    bytes: int
    window: _Bytes = field(default=b"", repr=False)
    """Its transactions, if they were asked for and are few enough: see `window_from_bytes`."""
    late: tuple[tuple[int, int], ...] = ()
    """(commit_ts, start_ts) at or below `lo` that the pump received after readers had passed them.
    """


@dataclass(frozen=True, slots=True)
class Entity:
    """One committed transaction (or fake binlog: start_ts == commit_ts) as PullBinlogs gives it.

    `payload` is a merged binlog.Binlog: type Commit, with the Prewrite's value and DDL inside.
    """

    start_ts: int
    commit_ts: int
    payload: bytes


class PendingBounds:
    """A pump's bounds that have been asked for."""

    def __init__(
        self, reader: PumpReader, connection: UnaryConnection, stream: int, lo: int
    ) -> None:
        self._reader, self._connection, self._stream, self._lo = reader, connection, stream, lo

    def get(self) -> WindowBounds | None:
        """Return the answer; None if `PumpReader.bounds` has to ask for it.

        Raises PumpReadError.
        """
        try:
            answer = pb.window.BoundsResponse.FromString(self._connection.finish(self._stream))
        except (UseFullGrpc, DecodeError):
            self._reader._drop_unary()
            return None
        return self._reader._checked(answer, self._lo)


class PumpReader:
    """Thread-safe.

    `host` is "ip:port", `timeout_s` how long the pump may stay silent in the middle of an answer.

    All calls raise PumpReadError.
    """

    def __init__(
        self,
        host: str,
        cluster_id: int,
        *,
        tls: TLS | None = None,
        timeout_s: float = 30.0,
        share: str = "",
    ) -> None:
        """Create the pump reader.

        `share` is the share of the tables that the pump should have, "" for all.

        A pump that has another one refuses all calls.
        """
        self.host, self.share = host, share
        self.tls = tls
        self.timeout_s = timeout_s
        self._cluster_id = cluster_id
        # Original pumps hang up on a client that pings an idle connection too often.
        self._channel = open_channel(host, tls, keepalive_ms=30_000)
        self._closed = False
        self._unary = UnaryEndpoint(host, min(timeout_s, _UNARY_TIMEOUT_S)) if tls is None else None

    def request_bounds(  # noqa: PLR0913 as the call is
        self,
        lo: int,
        fresh_ts: int,
        wait_ms: int = 0,
        max_transactions: int = 0,
        max_bytes: int = 0,
        inline_bytes: int = 0,
        *,
        ts_is_checked: bool = False,
    ) -> PendingBounds | None:
        """Start `bounds`, while the caller does something else; None where that is impossible.

        For one thread. `ts_is_checked`: another pump that the caller waits for is asked with this
        `fresh_ts`, too, without this: a pump that has nothing in the window may answer without
        moving its mark, and leave it to that one to find out whether PD has given the timestamp.
        """
        connection = (
            self._unary.connection() if self._unary is not None and not self._closed else None
        )
        if connection is None:
            return None
        wanted = self._bounds_request(
            lo, fresh_ts, wait_ms, max_transactions, max_bytes, inline_bytes
        )
        wanted.ts_is_checked = ts_is_checked
        try:
            return PendingBounds(
                self,
                connection,
                connection.begin("/sluice.Window/Bounds", wanted.SerializeToString()),
                lo,
            )
        except UseFullGrpc:
            self._drop_unary()
            return None

    def bounds(  # noqa: PLR0913 as the call is
        self,
        lo: int,
        fresh_ts: int,
        wait_ms: int = 0,
        max_transactions: int = 0,
        max_bytes: int = 0,
        inline_bytes: int = 0,
    ) -> WindowBounds:
        """Return how far a window that begins at `lo` (TSO, exclusive) may reach.

        The pump first moves its mark up to `fresh_ts` (TSO), which takes at most `wait_ms`. The
        window is within the limits (0: no limit), and empty while the mark is below `lo`. A
        window of at most `inline_bytes` comes with the answer, unless the pump is an older one.
        """
        wanted = self._bounds_request(
            lo, fresh_ts, wait_ms, max_transactions, max_bytes, inline_bytes
        )
        try:
            call = self._channel.unary_unary(
                "/sluice.Window/Bounds",
                request_serializer=pb.window.BoundsRequest.SerializeToString,
                response_deserializer=pb.window.BoundsResponse.FromString,
            )
            answer = call(wanted, timeout=self.timeout_s + wait_ms / 1000)
        except (grpc.RpcError, ValueError) as error:
            raise self._error(f"no bounds of a window from {lo}", error) from error
        return self._checked(answer, lo)

    def _bounds_request(self, *wanted: int) -> pb.window.BoundsRequest:
        lo, fresh_ts, wait_ms, max_transactions, max_bytes, inline_bytes = wanted
        return pb.window.BoundsRequest(
            cluster_id=self._cluster_id,
            lo=lo,
            fresh_ts=fresh_ts,
            wait_ms=wait_ms,
            max_transactions=max_transactions,
            max_bytes=max_bytes,
            inline_bytes=inline_bytes,
            share=self.share,
        )

    def _checked(self, answer: pb.window.BoundsResponse, lo: int) -> WindowBounds:
        if answer.hi > answer.max_commit_ts and (answer.hi != lo or answer.transactions):
            raise PumpReadError(
                f"pump {self.host} sent {answer}, a window past its own mark".replace("\n", " ")
            )
        late = tuple((each.commit_ts, each.start_ts) for each in answer.late) if answer.late else ()
        return WindowBounds(
            answer.max_commit_ts, answer.hi, answer.transactions, answer.bytes, answer.window, late
        )

    def await_newer(self, after_ts: int, wait_ms: int, done: Callable[[bool | None], None]) -> None:
        """Call `done` with whether a transaction is newer than `after_ts`.

        That may be in another thread. `after_ts` is a commit ts (TSO); the pump waits for a newer
        one at most `wait_ms`. None if the call fails. Never raises.
        """
        request = pb.window.AwaitRequest(
            cluster_id=self._cluster_id, after_ts=after_ts, wait_ms=wait_ms, share=self.share
        )

        def answered(answer: Any) -> None:
            failed = answer.cancelled() or answer.exception() is not None
            done(None if failed else answer.result().has_more)

        try:
            call = self._channel.unary_unary(
                "/sluice.Window/Await",
                request_serializer=pb.window.AwaitRequest.SerializeToString,
                response_deserializer=pb.window.AwaitResponse.FromString,
            )
            call.future(request, timeout=self.timeout_s + wait_ms / 1000).add_done_callback(
                answered
            )
        except (grpc.RpcError, ValueError):
            done(None)

    def digest(self, lo: int, hi: int) -> tuple[int, int, bytes]:
        """Return (hi, transactions, digest) of what the pump has with lo < commit_ts <= hi (TSO).

        The returned hi is the lesser of `hi` and what the pump is complete through.
        """
        try:
            call = self._channel.unary_unary(
                "/sluice.Window/Digest",
                request_serializer=pb.window.DigestRequest.SerializeToString,
                response_deserializer=pb.window.DigestResponse.FromString,
            )
            request = pb.window.DigestRequest(
                cluster_id=self._cluster_id, lo=lo, hi=hi, share=self.share
            )
            answer = call(request, timeout=self.timeout_s)
        except (grpc.RpcError, ValueError) as error:
            raise self._error(f"no digest of the window ({lo}, {hi}]", error) from error
        return answer.hi, answer.transactions, answer.digest

    def read(self, lo: int, hi: int) -> Iterator[pyarrow.RecordBatch]:
        """Yield the transactions with lo < commit_ts <= hi (TSO), ascending, as record batches.

        The columns are commit_ts int64, start_ts int64, payload large_binary. The request is sent
        at once. Decodes while it receives; close the iterator to stop early.
        """
        what = f"window ({lo}, {hi}]"
        request = pb.window.ReadRequest(cluster_id=self._cluster_id, lo=lo, hi=hi, share=self.share)
        return self._batches(
            self._stream("/sluice.Window/Read", request, pb.window.ReadResponse, what), what
        )

    def _batches(self, call: Any, what: str) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        from sluice.tidb.window_schema import WINDOW_SCHEMA

        chunks = ChunkFile(call, self.timeout_s)
        try:
            with pyarrow.ipc.open_stream(io.BufferedReader(chunks, _STREAM_BUFFER)) as reader:
                columns = [(field.name, field.type) for field in reader.schema]
                if columns != [(field.name, field.type) for field in WINDOW_SCHEMA]:
                    raise PumpReadError(f"pump {self.host} sent {what} with the columns {columns}")
                for batch in reader:
                    # offsets that lead elsewhere are read by compiled code
                    batch.validate(full=True)
                    yield batch
            # Arrow takes a stream cut between two batches for a whole one.
            chunks.finish()
        except (grpc.RpcError, OSError, ValueError, pyarrow.ArrowException) as error:
            raise self._error(f"could not read {what}", chunks.failure or error) from error
        finally:
            chunks.close()

    def pull(self, after_ts: int, silence_s: float | None = None) -> Iterator[Entity]:
        """Yield all transactions with commit_ts > after_ts (TSO), ascending, by PullBinlogs.

        Fake binlogs are among them. Follows the pump until the iterator or the reader is closed.

        With `silence_s` it is an error when the pump sends nothing for that time; an idle one sends
        a fake binlog every 3 s.
        """
        request = pb.pump.PullBinlogReq(
            clusterID=self._cluster_id, startFrom=pb.pump.Pos(offset=after_ts)
        )
        what = f"binlogs after {after_ts}"
        call = self._stream("/binlog.Pump/PullBinlogs", request, pb.pump.PullBinlogResp, what)
        guard = None if silence_s is None else SilenceGuard(call.cancel, silence_s)
        last = after_ts
        try:
            while True:
                with guard or contextlib.nullcontext():
                    response = next(call, None)
                if response is None:
                    if self._closed:
                        return
                    raise PumpReadError(f"pump {self.host} ended the stream of {what} at {last}")
                try:
                    entity = _entity(response.entity)
                except DecodeError as error:
                    raise PumpReadError(
                        f"pump {self.host} sent after {last} what is no binlog: {error}"
                    ) from error
                if entity.commit_ts <= last:
                    raise PumpReadError(
                        f"pump {self.host} sent commit ts {entity.commit_ts} after {last}, which is"
                        " out of order"
                    )
                last = entity.commit_ts
                yield entity
        except grpc.RpcError as error:
            if self._closed and status(error) == grpc.StatusCode.CANCELLED:
                return
            silent = guard is not None and guard.fired
            cause = TimeoutError(f"nothing came for {silence_s:g} s") if silent else error
            raise self._error(f"the stream of {what} broke at {last}", cause) from error
        finally:
            if guard is not None:
                guard.close()
            call.cancel()

    def close(self) -> None:
        """Close the connection and end what is being read."""
        self._closed = True
        if self._unary is not None:
            self._unary.close()
        self._channel.close()

    def __enter__(self) -> PumpReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _drop_unary(self) -> None:
        if self._unary is not None:
            self._unary.failed()

    def _stream(self, method: str, request: Any, response_type: Any, what: str) -> Any:
        try:
            return self._channel.unary_stream(
                method,
                request_serializer=type(request).SerializeToString,
                response_deserializer=response_type.FromString,
            )(request)
        except ValueError as error:
            raise self._error(f"could not read {what}", error) from error

    def _error(self, what: str, error: BaseException) -> PumpReadError:
        words = describe(error) if isinstance(error, grpc.RpcError) else str(error)
        if self._closed:
            words = "the reader is closed"
        unimplemented = status(error) == grpc.StatusCode.UNIMPLEMENTED
        return PumpReadError(f"pump {self.host}: {what}: {words}", unimplemented=unimplemented)


def window_from_bytes(host: str, window: bytes, lo: int, hi: int) -> pyarrow.RecordBatch:
    """Return the transactions with lo < commit_ts <= hi (TSO) of a window that came with bounds.

    The bounds are those of the pump at `host`, and the window may reach further. Raises
    PumpReadError.
    """
    import numpy as np
    import pyarrow

    from sluice.tidb.window_schema import WINDOW_SCHEMA

    try:
        batch = pyarrow.ipc.read_record_batch(pyarrow.py_buffer(window), WINDOW_SCHEMA)
        batch.validate(full=True)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise PumpReadError(
            f"pump {host}: the window from {lo} that came with its bounds is damaged: {error}"
        ) from error
    commits = batch["commit_ts"].to_numpy()
    if len(commits) and (commits[0] <= lo or (commits[1:] < commits[:-1]).any()):
        raise PumpReadError(
            f"pump {host}: asked for ({lo}, {hi}], it sent commits from {commits[0]} on, not in"
            " order"
        )
    return batch.slice(0, int(np.searchsorted(commits, hi, "right")))


def _entity(entity: pb.pump.Entity) -> Entity:
    if entity.meta.commitTs:
        return Entity(entity.meta.startTs, entity.meta.commitTs, entity.payload)
    merged = pb.binlog.Binlog.FromString(entity.payload)  # pumps before 4.0 send no meta
    return Entity(merged.start_ts, merged.commit_ts, entity.payload)
