"""Read records of the value log at given places: many at once, over whole arrays.

`read_heads` reads the first bytes, which tell what a record is; `payloads` reads all of it and
checks its CRC. Both read in long runs, whatever the order of the places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.pump_service.store import kernel
from sluice.pump_service.store.binlog_head import HEAD_BYTES, parse_head
from sluice.pump_service.store.segment import HEADER, Segment, crc32c
from sluice.pump_service.store.value_log import ValueLog

_MAX_RUN_BYTES = 1 << 20
_MAX_GAP_BYTES = 64 << 10
_HEAD_READ_BYTES = HEADER.size + HEAD_BYTES

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecordHeads:
    """Hold the places of records and what their first bytes tell; parallel arrays."""

    fids: Ints
    offsets: Ints
    lengths: Ints
    """Payload bytes."""
    crcs: Ints
    tps: Ints
    starts: Ints
    commits: Ints

    def select(self, which: Ints | npt.NDArray[np.bool_] | slice) -> RecordHeads:
        """Return those rows."""
        return RecordHeads(
            self.fids[which],
            self.offsets[which],
            self.lengths[which],
            self.crcs[which],
            self.tps[which],
            self.starts[which],
            self.commits[which],
        )

    def joined(self, other: RecordHeads) -> RecordHeads:
        """Return the rows of both."""
        return RecordHeads(
            *(
                np.concatenate((getattr(self, name), getattr(other, name)))
                for name in RecordHeads.__slots__
            )
        )

    def __len__(self) -> int:
        return len(self.fids)


class RecordReader:
    """Read records in any number of threads. Unreadable ones are reported to the value log."""

    def __init__(self, value_log: ValueLog) -> None:
        self._log = value_log

    def read_heads(self, fids: Ints, offsets: Ints) -> tuple[RecordHeads, Ints]:
        """Read the heads of the records at these places.

        Returns them sorted by place, and which of the given places each has. Bad ones are reported
        and excluded.
        """
        order = np.lexsort((offsets, fids))
        fids, offsets = fids[order], offsets[order]
        found = np.zeros((len(fids), 6), np.int64)
        for begin, end in _runs(fids, offsets, offsets + _HEAD_READ_BYTES):
            segment = self._log.segment(int(fids[begin]))
            if segment is None:
                continue
            base = int(offsets[begin])
            data = segment.pread(base, int(offsets[end - 1]) - base + _HEAD_READ_BYTES)
            kernel.look(data, base, offsets[begin:end], found[begin:end])
        lengths, crcs, tps, starts, commits, states = np.ascontiguousarray(found.T)
        records = RecordHeads(fids, offsets, lengths, crcs, tps, starts, commits)
        good = states != kernel.NOTHING
        self._read_in_full(records, good, states)
        if not good.all():
            return records.select(good), order[good]
        return records, order

    def _read_in_full(
        self, records: RecordHeads, good: npt.NDArray[np.bool_], states: Ints
    ) -> None:
        """Read records whose first bytes don't suffice.

        Odd encodings, and small ones to check the CRC.
        """
        for i in np.flatnonzero(~good).tolist():
            self._log.report_corrupt(
                int(records.fids[i]),
                int(records.offsets[i]),
                "the index points here, where no record is",
            )
        full = np.flatnonzero(states >= kernel.UNCHECKED)
        if not len(full):
            return
        payloads = self.payloads(records, full)
        if None in payloads:
            good[full[[p is None for p in payloads]]] = False
        for j in np.flatnonzero(states[full] == kernel.ODD).tolist():
            i, payload = int(full[j]), payloads[j]
            if payload is None:
                continue
            try:
                records.tps[i], records.starts[i], records.commits[i] = parse_head(payload)
            except (ValueError, OverflowError) as error:
                self._log.report_corrupt(
                    int(records.fids[i]), int(records.offsets[i]), f"no Binlog message: {error}"
                )
                good[i] = False

    def joined(self, records: RecordHeads) -> npt.NDArray[np.uint8] | None:
        """Return all payloads concatenated.

        None if one may be bad, which `payloads` then identifies.
        """
        order = np.lexsort((records.offsets, records.fids))
        placed = records.select(order)
        fids, inverse = np.unique(placed.fids, return_inverse=True)
        segments = [self._log.segment(fid) for fid in fids.tolist()]
        sizes = np.array([0 if segment is None else segment.size for segment in segments])
        limits = sizes[inverse] - placed.offsets - HEADER.size
        if bool(((placed.lengths < 0) | (placed.lengths > limits)).any()):
            return None
        targets = (np.cumsum(records.lengths) - records.lengths)[order]
        into = np.empty(int(records.lengths.sum()), np.uint8)
        ends = placed.offsets + HEADER.size + placed.lengths
        for begin, end in _runs(placed.fids, placed.offsets, ends):
            segment = self._log.segment(int(placed.fids[begin]))
            if segment is None:
                return None
            base = int(placed.offsets[begin])
            data = _pread(segment, base, int(ends[begin:end].max()) - base)
            which = slice(begin, end)
            columns = (
                placed.offsets[which],
                placed.lengths[which],
                placed.crcs[which],
                targets[which],
            )
            if not kernel.place(data, base, *columns, into):
                return None
        return into

    def payloads(self, records: RecordHeads, which: Ints | None = None) -> list[bytes | None]:
        """Return the payload of each record of `which` (None: all); None if bad and reported."""
        part = records if which is None else records.select(which)
        order = np.lexsort((part.offsets, part.fids))
        in_order = bool((order[1:] > order[:-1]).all())
        placed = part if in_order else part.select(order)
        ends = placed.offsets + HEADER.size + placed.lengths
        found: list[bytes | None] = []
        for begin, end in _runs(placed.fids, placed.offsets, ends):
            segment = self._log.segment(int(placed.fids[begin]))
            base = int(placed.offsets[begin])
            data = (
                b"" if segment is None else _pread(segment, base, int(ends[begin:end].max()) - base)
            )
            lows = (placed.offsets[begin:end] - base + HEADER.size).tolist()
            highs = (ends[begin:end] - base).tolist()
            slices = [data[low:high] for low, high in zip(lows, highs, strict=True)]
            crcs = np.fromiter(map(crc32c, slices), np.int64, len(slices))
            found += slices
            for j in np.flatnonzero(crcs != placed.crcs[begin:end]).tolist():
                what = "the segment has been purged" if segment is None else "checksum mismatch"
                self._log.report_corrupt(
                    int(placed.fids[begin + j]), int(placed.offsets[begin + j]), what
                )
                found[begin + j] = None
        if in_order:
            return found
        result: list[bytes | None] = [None] * len(found)
        for i, payload in zip(order.tolist(), found, strict=True):
            result[i] = payload
        return result


def _pread(segment: Segment, offset: int, size: int) -> bytes:
    return segment.pread(offset, min(size, max(0, segment.size - offset)))


def _runs(fids: Ints, begins: Ints, ends: Ints) -> Iterator[tuple[int, int]]:
    """Cut places, sorted by (fid, begin), into stretches worth reading at once.

    A stretch lies in one segment, has gaps of at most _MAX_GAP_BYTES and is about _MAX_RUN_BYTES
    long.
    """
    count = len(fids)
    if not count:
        return
    breaks = np.flatnonzero((np.diff(fids) != 0) | (begins[1:] - ends[:-1] > _MAX_GAP_BYTES)) + 1
    first = 0
    for stop in [*breaks.tolist(), count]:
        while first < stop:
            cut = int(
                np.searchsorted(ends[first:stop], int(begins[first]) + _MAX_RUN_BYTES, "right")
            )
            cut = first + max(cut, 1)
            yield first, cut
            first = cut
