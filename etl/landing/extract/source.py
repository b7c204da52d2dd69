"""Read a range of commits of one pump, over connections that outlive the window.

Rows are (commit_ts, start_ts, payload), ascending by commit_ts, payload = the Prewrite binlog as
TiDB sent it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from sluice.tidb import TLS, PumpReader

log = logging.getLogger("sluice.land")

_READ_TIMEOUT_S = 30.0
_LAST_START = 2**63 - 1

# Python workers are used again for later windows; so are their connections.
_Key = tuple[str, int, str, tuple[int, ...]]
_readers: dict[_Key, PumpReader] = {}


@dataclass(frozen=True, slots=True)
class PumpRange:
    """The commits in (lo, hi] (TSO) on the pump at `host` ("ip:port")."""

    host: str
    lo: int
    hi: int
    window: bytes = field(default=b"", repr=False)
    """Transactions of the range that the pump sent with its bounds, if they are little.

    There may be some behind the range, too; see `sluice.tidb.pumps.window_from_bytes`.
    """
    share: str = ""
    """Share of the tables that the pump has; "" for all."""
    others: tuple[PumpRange, ...] = ()
    """The same range on the pumps of the other shares: its transactions are joined with theirs."""


def read_range(  # noqa: PLR0913 a connection's, and the range
    host: str, cluster_id: int, lo: int, hi: int, tls: TLS | None = None, share: str = ""
) -> Iterator[pa.RecordBatch]:
    """Yield the commits in (lo, hi] of a pump, as record batches (commit_ts, start_ts, payload).

    The pump is asked at once. One that has another share of the tables refuses.

    A pump that doesn't offer the bulk read is read through PullBinlogs; which of the two it is is
    asked each time, because one may have taken the other's place. Raises upstream.PumpReadError,
    also if the pump sends a commit outside of the range.
    """
    reader = _reader(host, cluster_id, tls, share)
    batches = _read(reader, reader.read(lo, hi), lo, hi)
    if not share:
        return _in_range(reader, batches, lo, hi)
    return _resumed(lambda: _reader(host, cluster_id, tls, share), reader, batches, lo, hi)


def _reader(host: str, cluster_id: int, tls: TLS | None, share: str) -> PumpReader:
    from sluice.tidb import PumpReader

    # new certificates, a new connection
    key = (host, cluster_id, share, tls.stamp() if tls is not None else ())
    reader = _readers.get(key)
    if reader is None:
        # of certificates that are used no longer
        for other in [other for other in _readers if other[:3] == key[:3]]:
            _readers.pop(other).close()
        reader = _readers[key] = PumpReader(
            host, cluster_id, tls=tls, timeout_s=_READ_TIMEOUT_S, share=share
        )
    return reader


def prefetched_range(host: str, window: bytes, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
    """Yield as `read_range`, from what the pump has sent along with its bounds."""
    from sluice.tidb.pumps import window_from_bytes

    batch = window_from_bytes(host, window, lo, hi)
    if batch.num_rows:
        yield batch


def _resumed(
    again: Callable[[], PumpReader],
    reader: PumpReader,
    batches: Iterator[pa.RecordBatch],
    lo: int,
    hi: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the range, also if the pump ends the stream, while each stream brings something.

    A share is joined with the others, so nothing may be taken from it for minutes, while another
    one sends a large transaction. A pump that others wait for ends such a stream.
    """
    import grpc

    from sluice.tidb import PumpReadError
    from sluice.tidb.rpc import status

    last = (lo, _LAST_START)
    while True:
        has_come = False
        try:
            for batch in _in_range(reader, batches, lo, hi):
                rest = _behind(batch, last)
                if rest.num_rows:
                    has_come, last = True, _key_at(rest, -1)
                    yield rest
            return
        except PumpReadError as error:
            ended = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
            if not has_come or status(error.__cause__ or error) not in ended:
                raise
            log.info(
                "reading a share goes on pump=%s after_ts=%d error=%s", reader.host, last[0], error
            )
        lo = last[0] - 1
        reader = again()
        batches = _read(reader, reader.read(lo, hi), lo, hi)


def _behind(batch: pa.RecordBatch, last: tuple[int, int]) -> pa.RecordBatch:
    """Return the transactions behind one; they are in order."""
    if _key_at(batch, 0) > last:
        return batch
    rows = zip(batch["commit_ts"].to_pylist(), batch["start_ts"].to_pylist())
    return batch.slice(sum(1 for key in rows if key <= last))


def _key_at(batch: pa.RecordBatch, row: int) -> tuple[int, int]:
    return batch["commit_ts"][row].as_py(), batch["start_ts"][row].as_py()


def _in_range(
    reader: PumpReader, batches: Iterator[pa.RecordBatch], lo: int, hi: int
) -> Iterator[pa.RecordBatch]:
    from sluice.tidb import PumpReadError

    host, last = reader.host, (lo, _LAST_START)
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            first, final = _key_at(batch, 0), _key_at(batch, -1)
            if first <= last or final[0] > hi:
                raise PumpReadError(
                    f"pump {host}: asked for ({lo}, {hi}], it sent commits {first[0]} to {final[0]}"
                    f" after {last[0]}"
                )
            last = final
            yield batch
    except PumpReadError:
        for key in [key for key, each in _readers.items() if each is reader]:
            del _readers[key]
        reader.close()
        raise


def _read(
    reader: PumpReader, batches: Iterator[pa.RecordBatch], lo: int, hi: int
) -> Iterator[pa.RecordBatch]:
    from sluice.tidb import PumpReadError
    from sluice.tidb.pumps import pulled_window

    try:
        yield from batches
        return
    except PumpReadError as error:
        if not error.unimplemented:
            raise
    if lo < hi:
        yield from pulled_window(reader, lo, hi)
