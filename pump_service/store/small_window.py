"""Read a window of few transactions in one call: its bounds and its transactions.

`WindowReader` works on whole arrays, which costs as much for three records as for a hundred. Behind
steady traffic nearly all windows have a few records side by side. These are read with one call and
parsed one by one. Everything unusual is left to `WindowReader`, which also reports it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pyarrow as pa

from sluice.errors import Signal
from sluice.pump_service.store.index import BinlogIndex
from sluice.pump_service.store.records import WindowReach
from sluice.pump_service.store.segment import HEADER, RECORD_MAGIC, crc32c
from sluice.pump_service.store.value_log import ValueLog
from sluice.tidb.binlog_kinds import COMMIT
from sluice.tidb.window_schema import WINDOW_SCHEMA

_MAX_ENTRIES = 128
_MAX_RUN_BYTES = 256 << 10
_READ_AHEAD_BYTES = 4 << 10  # read behind the last record's beginning: most records end there
_ROW_BYTES = 24  # of a row besides its payload, as `WindowReader.bounds` counts them
# As TiDB writes them: the fields in order, timestamps of nine bytes, a Prewrite's commit_ts 0.
_PREWRITE = re.compile(rb"\x08\x00\x10([\x80-\xff]{8}[\x00-\x7f])\x18\x00", re.DOTALL)
_WHOLE = re.compile(
    rb"\x08\x00\x10([\x80-\xff]{8}[\x00-\x7f])\x18([\x80-\xff]{8}[\x00-\x7f])", re.DOTALL
)
_OUTCOME = re.compile(
    rb"\x08([\x01\x02])\x10([\x80-\xff]{8}[\x00-\x7f])\x18([\x80-\xff]{8}[\x00-\x7f])", re.DOTALL
)


class SmallWindow(NamedTuple):
    """Hold a whole window: its bounds, and its transactions in WINDOW_SCHEMA (None without any)."""

    bounds: WindowReach
    rows: pa.RecordBatch | None


class _NotSmall(Signal):
    """Leave the window to WindowReader."""


class SmallWindows:
    """Read small windows, in any number of threads."""

    def __init__(self, value_log: ValueLog, index: BinlogIndex) -> None:
        self._log, self._index = value_log, index

    def read(
        self, after: int, through: int, max_transactions: int, max_bytes: int
    ) -> SmallWindow | None:
        """Return all transactions with commit_ts in (after, through].

        None if WindowReader must read them.

        That is so if they exceed a limit, if their records are not few and in one place, or if one
        can't be read, is damaged, missing or not as TiDB writes it. `through` must not be beyond
        max_commit_ts.
        """
        timestamps, fids, offsets = (
            column.tolist() for column in self._index.range(after, through, _MAX_ENTRIES)
        )
        if len(timestamps) == _MAX_ENTRIES or fids.count(fids[0] if fids else 0) != len(fids):
            return None
        try:
            payloads = self._payloads(fids[0], offsets) if fids else []
            of_records = _captured if self._index.is_captured else self._transactions
            found = of_records(list(zip(timestamps, payloads, strict=True)))
        except _NotSmall:
            return None
        size = sum(len(payload) + _ROW_BYTES for _, _, payload in found)
        if len(found) > max_transactions or size > max_bytes:
            return None
        if not found:
            return SmallWindow(WindowReach(through, 0, 0), None)
        columns = [
            pa.array(values, field.type)
            for values, field in zip(zip(*found, strict=True), WINDOW_SCHEMA)
        ]
        return SmallWindow(
            WindowReach(through, len(found), size), pa.record_batch(columns, schema=WINDOW_SCHEMA)
        )

    def _payloads(self, fid: int, offsets: list[int]) -> list[bytes]:
        """Return the payloads of the records at these places of a segment. Raises _NotSmall."""
        segment = self._log.segment(fid)
        first, last = min(offsets), max(offsets)
        if segment is None or last - first > _MAX_RUN_BYTES:
            raise _NotSmall
        data = segment.pread(first, last - first + _READ_AHEAD_BYTES)
        payloads = []
        for offset in offsets:
            begin = offset - first + HEADER.size
            if begin > len(data):
                raise _NotSmall
            magic, length, crc = HEADER.unpack_from(data, begin - HEADER.size)
            if magic != RECORD_MAGIC or not 0 < length <= _MAX_RUN_BYTES:
                raise _NotSmall
            if begin + length > len(data):
                data = segment.pread(first, begin + length)
            payload = data[begin : begin + length]
            if len(payload) != length or crc32c(payload) != crc:
                raise _NotSmall
            payloads.append(payload)
        return payloads

    def _transactions(self, records: list[tuple[int, bytes]]) -> list[tuple[int, int, bytes]]:
        """Return commit_ts, start_ts and Prewrite of the transactions that the records commit.

        `records` are pairs of index timestamp and payload, ascending. Raises _NotSmall.
        """
        prewrites: dict[int, bytes] = {}
        commits: list[tuple[int, int]] = []
        for ts, payload in records:
            outcome = _OUTCOME.match(payload)
            if outcome is None:
                prewrites[ts] = _checked_prewrite(ts, payload)
                continue
            kind, start, commit = outcome.groups()
            start_ts = _nine_byte_varint(start)
            if _nine_byte_varint(commit) != ts:
                raise _NotSmall
            if kind[0] == COMMIT and start_ts != ts:  # else it is a fake binlog
                commits.append((ts, start_ts))
        return [
            (commit_ts, start_ts, prewrites.get(start_ts) or self._older_prewrite(start_ts))
            for commit_ts, start_ts in commits
        ]

    def _older_prewrite(self, start_ts: int) -> bytes:
        """Return a Prewrite that lies before the window. Raises _NotSmall."""
        pointer = self._index.get(start_ts)
        if pointer is None:
            raise _NotSmall
        return _checked_prewrite(start_ts, self._payloads(pointer.fid, [pointer.offset])[0])


def _checked_prewrite(ts: int, payload: bytes) -> bytes:
    """Return the payload if it is the Prewrite with this start_ts. Raises _NotSmall."""
    prewrite = _PREWRITE.match(payload)
    if prewrite is None or _nine_byte_varint(prewrite[1]) != ts:
        raise _NotSmall
    return payload


def _captured(records: list[tuple[int, bytes]]) -> list[tuple[int, int, bytes]]:
    """Return commit_ts, start_ts and payload of captured transactions. Raises _NotSmall."""
    found = []
    for ts, payload in records:
        whole, fake = _WHOLE.match(payload), _OUTCOME.match(payload)
        commit = whole[2] if whole is not None else fake[3] if fake is not None else b""
        if _nine_byte_varint(commit) != ts:
            raise _NotSmall
        if whole is not None:
            found.append((ts, _nine_byte_varint(whole[1]), payload))
    return found


def _nine_byte_varint(data: bytes) -> int:
    """Return the value of a varint of nine bytes."""
    value = int.from_bytes(data, "little")
    return (
        (value & 0x7F)
        | (value >> 1 & 0x7F << 7)
        | (value >> 2 & 0x7F << 14)
        | (value >> 3 & 0x7F << 21)
        | (value >> 4 & 0x7F << 28)
        | (value >> 5 & 0x7F << 35)
        | (value >> 6 & 0x7F << 42)
        | (value >> 7 & 0x7F << 49)
        | (value >> 8 & 0x7F << 56)
    )
