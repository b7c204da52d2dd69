"""Windows from a pump that serves only PullBinlogs, as TiDB Binlog's own Pump does.

The stream comes in the order of commit timestamps, and a pump sends a timestamp only when it is
complete through it: so what arrived up to timestamp X is all there is up to X. An idle pump sends a
fake binlog every 3 s, which moves X on.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from sluice.tidb import pb, tso
from sluice.tidb.pumps.reader import PumpReader, PumpReadError, WindowBounds

if TYPE_CHECKING:
    import pyarrow

    from sluice.tidb.rpc import TLS

_MAX_BATCH_BYTES = 4 << 20
_MAX_BATCH_ROWS = 10_000
_METRICS_TIMEOUT_S = 5.0
_CHECK_INTERVAL_S = 60.0
_GC_TS = re.compile(rb"^binlog_pump_storage_gc_ts(?:\{[^}]*\})? (\S+)", re.MULTILINE)
_COMMIT_HEAD, _PREWRITE_HEAD = b"\x08\x01", b"\x08\x00"  # field 1, tp


class CommitsGoneError(PumpReadError):
    """The pump no longer has commits that were asked for.

    The original leaves them out of its stream without a word.
    """

    transient = False
    hint = "copy the data again: the pump doesn't have them any more"


def pulled_window(reader: PumpReader, lo: int, hi: int) -> Iterator[pyarrow.RecordBatch]:
    """Yield the transactions with lo < commit_ts <= hi (TSO), by PullBinlogs.

    They are as PumpReader.read gives them. The window is over when the pump has sent a timestamp at
    or beyond `hi`, be it a fake binlog's; nothing else ends it. Raises PumpReadError, also when the
    pump stays silent for the reader's time-out, and CommitsGoneError.
    """
    import pyarrow

    from sluice.tidb.window_schema import WINDOW_SCHEMA

    commits: list[int] = []
    starts: list[int] = []
    payloads: list[bytes] = []
    size = 0
    stream = reader.pull(lo, reader.timeout_s)
    try:
        while (entity := next(stream, None)) is not None:
            if entity.commit_ts <= hi and entity.start_ts != entity.commit_ts:
                commits.append(entity.commit_ts)
                starts.append(entity.start_ts)
                payloads.append(as_prewrite(entity.payload, reader.host, entity.commit_ts))
                size += len(payloads[-1])
            over = entity.commit_ts >= hi
            if commits and (over or size >= _MAX_BATCH_BYTES or len(commits) >= _MAX_BATCH_ROWS):
                yield pyarrow.record_batch([commits, starts, payloads], schema=WINDOW_SCHEMA)
                commits, starts, payloads, size = [], [], [], 0
            if over:
                break
        else:
            raise PumpReadError(
                f"pump {reader.host}: the reader was closed inside of window ({lo}, {hi}]"
            )
    finally:
        stream.close()  # type: ignore[attr-defined]
    # Checked last: garbage collection may have overtaken the reading, unseen in the stream.
    check_not_purged(reader, lo)


def as_prewrite(payload: bytes, host: str = "", commit_ts: int = 0) -> bytes:
    """Convert a merged binlog (type Commit, with the Prewrite's content) back into its Prewrite.

    PumpReadError if it is none; `host` and `commit_ts` are for the message.
    """
    if payload.startswith(_COMMIT_HEAD):  # as every Go or Python writer begins
        return _PREWRITE_HEAD + payload[len(_COMMIT_HEAD) :]
    try:
        merged = pb.binlog.Binlog.FromString(payload)
        if merged.tp != pb.binlog.Commit:
            raise ValueError(f"its type is {merged.tp}")
    except (DecodeError, ValueError) as error:
        raise PumpReadError(
            f"pump {host} sent with commit ts {commit_ts} what is no commit: {error}"
        ) from error
    merged.tp = pb.binlog.Prewrite
    return bytes(merged.SerializeToString())


def check_not_purged(reader: PumpReader, lo: int) -> None:
    """Raise CommitsGoneError if the pump has purged commits after `lo` (TSO; 0: any will do).

    The pump reports that by the metric ``binlog_pump_storage_gc_ts``, in ms, on the same port.
    Raises PumpReadError if it can't be read: going on without it might leave out transactions.
    """
    if lo == 0:
        return
    purged_ms = _purged_ms(reader.host, reader.tls)
    if purged_ms > tso.physical_ms(lo):
        raise CommitsGoneError(
            f"pump {reader.host} has purged everything through {tso.span(purged_ms)} (its gc),"
            f" commits after {lo} were asked for"
        )


def _purged_ms(host: str, tls: TLS | None) -> int:
    url = f"{'https' if tls else 'http'}://{host}/metrics"
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if tls is not None:
        handlers.append(urllib.request.HTTPSHandler(context=tls.context()))
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=_METRICS_TIMEOUT_S) as answer:
            found = _GC_TS.search(answer.read())
        if found is None:
            raise ValueError("there is no binlog_pump_storage_gc_ts")
        return int(float(found[1]))
    except (OSError, ValueError) as error:
        raise PumpReadError(
            f"pump {host}: {url} doesn't show what the pump has purged: {error}"
        ) from error


class PullFollower:
    """Follow a pump's stream a few windows ahead, and so compute bounds for the next window.

    Only timestamps and sizes are kept. While it is far enough ahead the stream stands still.
    Thread-safe.
    """

    def __init__(self, reader: PumpReader, lo: int, max_transactions: int, max_bytes: int) -> None:
        """Begin after `lo` (TSO).

        The reader is the follower's from now on. Raises what check_not_purged raises.
        """
        check_not_purged(reader, lo)
        self._checked = time.monotonic()
        self._reader = reader
        self._max_transactions = max_transactions
        self._max_bytes = max_bytes
        self._base = lo
        self._seen = lo
        self._buffered: deque[tuple[int, int]] = deque()
        self._buffered_bytes = 0
        self._failure: PumpReadError | None = None
        self._closed = False
        self._room = threading.Condition()
        threading.Thread(target=self._run, name="pump-follower", daemon=True).start()

    def follows(self, lo: int) -> bool:
        """Return whether `bounds` can be asked from `lo`: not from before what was asked last."""
        return lo >= self._base

    def bounds(self, lo: int) -> WindowBounds:
        """Return the largest window after `lo` within the limits, at least one transaction.

        Raises PumpReadError once the stream has broken, CommitsGoneError.
        """
        if time.monotonic() - self._checked > _CHECK_INTERVAL_S:
            check_not_purged(self._reader, lo)
            self._checked = time.monotonic()
        with self._room:
            if self._failure is not None:
                raise self._failure
            while self._buffered and self._buffered[0][0] <= lo:
                self._buffered_bytes -= self._buffered.popleft()[1]
            self._base = lo
            self._room.notify()
            transactions = size = 0
            hi = lo
            for commit_ts, length in self._buffered:
                if transactions and (
                    transactions == self._max_transactions or size + length > self._max_bytes
                ):
                    return WindowBounds(self._seen, hi, transactions, size)
                transactions, size, hi = transactions + 1, size + length, commit_ts
            return WindowBounds(self._seen, self._seen, transactions, size)

    def close(self) -> None:
        """End the stream and close the reader."""
        with self._room:
            self._closed = True
            self._room.notify()
        self._reader.close()

    def _run(self) -> None:
        try:
            for entity in self._reader.pull(self._seen):
                with self._room:
                    while self._is_far_ahead() and not self._closed:
                        self._room.wait()
                    if self._closed:
                        return
                    if entity.start_ts != entity.commit_ts:
                        self._buffered.append((entity.commit_ts, len(entity.payload)))
                        self._buffered_bytes += len(entity.payload)
                    self._seen = entity.commit_ts
        except PumpReadError as error:
            self._failure = error
        except Exception as error:  # else the readers would not hear of it, and wait for ever
            self._failure = PumpReadError(
                f"pump {self._reader.host}: following it failed after {self._seen}: {error!r}"
            )

    def _is_far_ahead(self) -> bool:
        return (
            len(self._buffered) > 2 * self._max_transactions
            or self._buffered_bytes > 2 * self._max_bytes
        )
