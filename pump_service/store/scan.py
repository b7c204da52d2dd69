"""Read a segment front to back in batches, and resynchronize after bytes that are no record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt

from sluice.pump_service.store.binlog_head import HEAD_BYTES, parse_head, parse_heads, rows_at
from sluice.pump_service.store.segment import (
    HEADER,
    RECORD_MAGIC,
    RECORD_MAGIC_BYTES,
    Segment,
    crc32c,
)

CHUNK_BYTES = 8 << 20
_RESYNC_STRIDE_BYTES = 1 << 20
"""Bytes searched for headers at a time."""

Ints = npt.NDArray[np.int64]
OnSkipped = Callable[[Segment, int, int], None]
"""Called with the segment, where unreadable bytes begin, and how many there are."""


@dataclass(frozen=True, slots=True)
class ScanBatch:
    """Hold records of one segment in file order; `end` is where the next one may begin."""

    fid: int
    offsets: Ints
    tps: Ints
    starts: Ints
    commits: Ints
    end: int


def scan_segment(
    segment: Segment, begin: int, end: int, on_skipped: OnSkipped
) -> Iterator[ScanBatch]:
    """Yield every readable record in [begin, end) as batches of about CHUNK_BYTES of file.

    A record that reaches beyond `end`, has a wrong CRC or is no Binlog counts as unreadable, as
    does all up to the next record magic with a readable record behind it. `on_skipped` gets each
    such stretch once, a torn tail too.
    """
    pos = begin
    skipped_from = -1

    def report(until: int) -> None:
        nonlocal skipped_from
        if skipped_from >= 0:
            on_skipped(segment, skipped_from, until - skipped_from)
            skipped_from = -1

    while pos < end:
        data = segment.pread(pos, min(CHUNK_BYTES, end - pos))
        if not data:
            break
        at = 0
        while True:
            offsets, lengths, stop, need = _walk(data, at, end - pos)
            if len(offsets):
                report(pos + at)
                heads = _heads(data, offsets, lengths)
                yield ScanBatch(segment.fid, pos + offsets - HEADER.size, *heads, pos + stop)
                pos += stop
                break
            if need and at:  # this chunk may cut a good record: read a chunk that begins there
                if skipped_from < 0:
                    skipped_from = pos
                pos += at
                break
            if need:
                big = _big_record(segment, pos)
                if big is not None:
                    report(pos)
                    yield big
                    pos = big.end
                    break
            if skipped_from < 0:
                skipped_from = pos + at
            found = data.find(RECORD_MAGIC_BYTES, at + 1)
            if found < 0:
                # the last three bytes may be the beginning of a magic
                pos += max(at + 1, len(data) - 3)
                break
            at = found
    report(end)


def _walk(data: bytes, at: int, available: int) -> tuple[Ints, Ints, int, int]:
    """Follow the chain of records from `data[at:]` as far as they are whole and good.

    Returns payload offsets (in `data`), lengths, where it stopped, and the size of the record that
    doesn't fit in `data` though it lies within the `available` bytes behind its beginning (0 if
    there is none).
    """
    heads: list[Ints] = []
    lengths: list[Ints] = []
    pos = at
    while pos + HEADER.size <= len(data):
        found, sizes, stop = _straight(data, pos, min(len(data), pos + _RESYNC_STRIDE_BYTES))
        if not len(found):
            break
        heads.append(found)
        lengths.append(sizes)
        pos = stop
    begins, sizes = _join(heads) + HEADER.size, _join(lengths)
    if len(begins):
        good = _good_crcs(data, begins, sizes)
        if good < len(begins):
            pos = int(begins[good]) - HEADER.size
            return begins[:good], sizes[:good], pos, 0
    return begins, sizes, pos, _cut_off(data, pos, available)


def _join(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _straight(data: bytes, at: int, until: int) -> tuple[Ints, Ints, int]:
    """Return offsets and lengths of the chain of records that begins at `at`, and its end.

    Only headers in [at, until) count. Returns nothing if there is no whole record at `at`.
    """
    raw = np.frombuffer(data, np.uint8)
    # Places that look like a header; nearly all are one, and end where the next one begins.
    tail = max(at, min(until, len(data) - HEADER.size + 1))
    places = np.flatnonzero(raw[at:tail] == RECORD_MAGIC_BYTES[0]) + at
    for i in (1, 2, 3):
        places = places[raw[places + i] == RECORD_MAGIC_BYTES[i]]
    if not len(places) or places[0] != at:
        return places[:0], places[:0], at
    lengths = rows_at(raw, places + 4, 8).view("<i8").ravel()
    # A header without payload is no record (see `segment`), so it ends where none does.
    lengths = np.where((lengths <= 0) | (lengths > len(data)), len(data), lengths)
    ends = places + HEADER.size + lengths
    whole = int(np.argmax(ends > len(data))) if (ends > len(data)).any() else len(ends)
    breaks = np.flatnonzero(ends[:-1] != places[1:])
    if not len(breaks):
        count = whole
        return places[:count], lengths[:count], int(ends[count - 1]) if count else at
    keep: list[Ints] = []
    i = 0
    while i < len(places) and ends[i] <= len(data):
        # From record i straight on to the next break, then, over magics inside a payload, to where
        # that record ends.
        k = int(np.searchsorted(breaks, i))
        last = int(breaks[k]) if k < len(breaks) else len(places) - 1
        over = np.flatnonzero(ends[i : last + 1] > len(data))
        if len(over):
            keep.append(np.arange(i, i + int(over[0])))
            break
        keep.append(np.arange(i, last + 1))
        end = int(ends[last])
        i = int(np.searchsorted(places, end))
        if i < len(places) and places[i] != end:
            break
    chosen = _join(keep).astype(np.int64)
    return places[chosen], lengths[chosen], int(ends[chosen[-1]]) if len(chosen) else at


def _good_crcs(data: bytes, begins: Ints, lengths: Ints) -> int:
    """Return how many of the records, from the first on, have the right CRC."""
    ends = (begins + lengths).tolist()
    payloads = [data[begin:end] for begin, end in zip(begins.tolist(), ends, strict=True)]
    stored = rows_at(np.frombuffer(data, np.uint8), begins - 4, 4).view("<u4").ravel()
    wrong = np.flatnonzero(np.fromiter(map(crc32c, payloads), np.uint32, len(payloads)) != stored)
    return int(wrong[0]) if len(wrong) else len(begins)


def _cut_off(data: bytes, pos: int, available: int) -> int:
    """Return the size of the record at `pos` if `data` cuts it though it is available; else 0."""
    if pos + HEADER.size > len(data):
        return HEADER.size if len(data) < available else 0
    magic, length, _ = HEADER.unpack_from(data, pos)
    end = pos + HEADER.size + length
    return end - pos if magic == RECORD_MAGIC and len(data) < end <= available else 0


def _heads(data: bytes, offsets: Ints, lengths: Ints) -> tuple[Ints, Ints, Ints]:
    """Return types, start_ts and commit_ts of the records whose payloads are at `offsets`."""
    raw = np.frombuffer(data + bytes(HEAD_BYTES), np.uint8)
    tps, starts, commits, right = parse_heads(rows_at(raw, offsets, HEAD_BYTES), lengths)
    for i in np.flatnonzero(~right).tolist():
        try:
            head = parse_head(data[int(offsets[i]) : int(offsets[i] + lengths[i])])
            tps[i], starts[i], commits[i] = head
        except (ValueError, OverflowError):
            # Its CRC is right, so it was accepted once; without timestamps it can't be indexed.
            tps[i] = starts[i] = commits[i] = 0
    return tps, starts, commits


def _big_record(segment: Segment, pos: int) -> ScanBatch | None:
    """Return a record larger than a chunk, checked piece by piece; None if its CRC is wrong."""
    _, length, crc = HEADER.unpack(segment.pread(pos, HEADER.size))
    begin, end = pos + HEADER.size, pos + HEADER.size + length
    running = 0
    for at in range(begin, end, CHUNK_BYTES):
        running = google_crc32c.extend(running, segment.pread(at, min(CHUNK_BYTES, end - at)))
    if running != crc:
        return None
    head = segment.pread(begin, HEAD_BYTES)
    tps, starts, commits, right = parse_heads(
        np.frombuffer(head, np.uint8).reshape(1, -1), np.array([length], np.int64)
    )
    if not right[0]:
        tps, starts, commits = _heads(
            segment.pread(begin, length), np.zeros(1, np.int64), np.array([length])
        )
    return ScanBatch(segment.fid, np.array([pos], np.int64), tps, starts, commits, end)
