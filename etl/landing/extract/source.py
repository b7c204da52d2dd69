"""Read a range of commits of one pump, over connections that outlive the window.

Rows are (commit_ts, start_ts, payload), ascending by commit_ts, payload = the Prewrite binlog as
TiDB sent it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from sluice.tidb import TLS, PumpReader

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
    return _in_range(key, reader, _read(reader, reader.read(lo, hi), lo, hi), lo, hi)


def prefetched_range(host: str, window: bytes, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
    """Yield as `read_range`, from what the pump has sent along with its bounds."""
    from sluice.tidb.pumps import window_from_bytes

    batch = window_from_bytes(host, window, lo, hi)
    if batch.num_rows:
        yield batch


def _in_range(
    key: _Key, reader: PumpReader, batches: Iterator[pa.RecordBatch], lo: int, hi: int
) -> Iterator[pa.RecordBatch]:
    from sluice.tidb import PumpReadError

    host, last = reader.host, (lo, _LAST_START)
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            first, final = (
                (batch["commit_ts"][i].as_py(), batch["start_ts"][i].as_py()) for i in (0, -1)
            )
            if first <= last or final[0] > hi:
                raise PumpReadError(
                    f"pump {host}: asked for ({lo}, {hi}], it sent commits {first[0]} to {final[0]}"
                    f" after {last[0]}"
                )
            last = final
            yield batch
    except PumpReadError:
        _readers.pop(key, None)
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
