"""Reads a segment front to back, batch by batch, and finds its way again after bytes that are no record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt

from pump_service.store.binlog_head import HEAD_BYTES, parse_head, parse_heads, rows_at
from pump_service.store.segment import HEADER, RECORD_MAGIC, RECORD_MAGIC_BYTES, Segment, crc32c

CHUNK = 8 << 20

Ints = npt.NDArray[np.int64]
OnSkipped = Callable[[Segment, int, int], None]
"""called with the segment, where unreadable bytes begin, and how many there are"""


@dataclass(frozen=True, slots=True)
class ScanBatch:
    """Records of one segment in file order; `end` is where the next one may begin."""

    fid: int
    offsets: Ints
    tps: Ints
    starts: Ints
    commits: Ints
    end: int


def scan_segment(
    segment: Segment, begin: int, end: int, on_skipped: OnSkipped, *, check_crc: bool = True
) -> Iterator[ScanBatch]:
    """Every readable record in [begin, end) as batches of at most about CHUNK bytes of file.

    A record that reaches beyond `end`, has a wrong CRC or is no Binlog counts as unreadable, as does all up to the next
    record magic with a readable record behind it; `on_skipped` gets each such stretch once, a torn tail too.
    """
    pos = begin
    skipped_from = -1

    def report(until: int) -> None:
        nonlocal skipped_from
        if skipped_from >= 0:
            on_skipped(segment, skipped_from, until - skipped_from)
            skipped_from = -1

    while pos < end:
        data = segment.pread(pos, min(CHUNK, end - pos))
        if not data:
            break
        at = 0
        while True:
            offsets, lengths, stop, need = _walk(data, at, end - pos, check_crc)
            if offsets:
                report(pos + at)
                yield _batch(segment.fid, data, pos, offsets, lengths, pos + stop)
                pos += stop
                break
            if need and at:  # may be a good record that this chunk cuts: look again with a chunk that begins there
                if skipped_from < 0:
                    skipped_from = pos
                pos += at
                break
            if need:
                big = _big_record(segment, pos, check_crc)
                if big is not None:
                    report(pos)
                    yield big
                    pos = big.end
                    break
            if skipped_from < 0:
                skipped_from = pos + at
            found = data.find(RECORD_MAGIC_BYTES, at + 1)
            if found < 0:
                pos += max(at + 1, len(data) - 3)  # the last three bytes may be the beginning of a magic
                break
            at = found
    report(end)


def _walk(data: bytes, at: int, available: int, check_crc: bool) -> tuple[list[int], list[int], int, int]:
    """Follows the chain of records from `data[at:]` as far as they are whole and good.

    Returns payload offsets (in `data`), lengths, where it stopped, and the size of the record that does not fit in
    `data` though it lies within the `available` bytes behind its beginning (0 if there is none).
    """
    offsets: list[int] = []
    lengths: list[int] = []
    unpack, header, size, pos = HEADER.unpack_from, HEADER.size, len(data), at
    crc_of = crc32c
    need = 0
    if size < available and pos + header > size:
        need = header
    while pos + header <= size:
        magic, length, crc = unpack(data, pos)
        begin = pos + header
        end = begin + length
        if magic != RECORD_MAGIC:
            break
        if end > size:
            if end <= available:
                need = end - pos
            break
        if check_crc and crc_of(data[begin:end]) != crc:
            break
        offsets.append(begin)
        lengths.append(length)
        pos = end
    return offsets, lengths, pos, need


def _batch(fid: int, data: bytes, base: int, begins: list[int], sizes: list[int], end: int) -> ScanBatch:
    offsets = np.array(begins, np.int64)
    lengths = np.array(sizes, np.int64)
    raw = np.frombuffer(data + bytes(HEAD_BYTES), np.uint8)
    tps, starts, commits, right = parse_heads(rows_at(raw, offsets, HEAD_BYTES), lengths)
    for i in np.flatnonzero(~right).tolist():
        try:
            head = parse_head(data[begins[i] : begins[i] + sizes[i]])
            tps[i], starts[i], commits[i] = head
        except (ValueError, OverflowError):
            # Its CRC is right, so this is what was once accepted; without timestamps it can't be indexed.
            tps[i] = starts[i] = commits[i] = 0
    return ScanBatch(fid, base + offsets - HEADER.size, tps, starts, commits, end)


def _big_record(segment: Segment, pos: int, check_crc: bool) -> ScanBatch | None:
    """The record with its header at `pos`, larger than a chunk, checked piece by piece; None if its CRC is wrong."""
    _, length, crc = HEADER.unpack(segment.pread(pos, HEADER.size))
    begin, end = pos + HEADER.size, pos + HEADER.size + length
    if check_crc:
        running = 0
        for at in range(begin, end, CHUNK):
            running = google_crc32c.extend(running, segment.pread(at, min(CHUNK, end - at)))
        if running != crc:
            return None
    head = segment.pread(begin, HEAD_BYTES)
    tps, starts, commits, right = parse_heads(
        np.frombuffer(head, np.uint8).reshape(1, -1), np.array([length], np.int64)
    )
    if not right[0]:
        return _batch(segment.fid, segment.pread(begin, length), begin, [0], [length], end)
    return ScanBatch(segment.fid, np.array([pos], np.int64), tps, starts, commits, end)
