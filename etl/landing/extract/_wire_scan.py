"""Scan protobuf's wire format over many messages at once: where their fields lie.

Nothing is copied. Messages are stretches of one buffer. As long as many of them are unfinished,
one field of each is read in a step, over whole arrays; what is left, few messages or long ones, is
read field by field. The wire format: a field is a varint ``number << 3 | wire type`` and a value;
wire types are 0 varint, 1 eight bytes, 2 a varint length and so many bytes, 5 four bytes. Groups
(3, 4), which binlogs have never had, are refused.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.errors import SluiceError

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
RUN_WIRE_TYPE = 7
"""Stands for a wire type: neighbouring fields ``tag, value`` of a byte each, begin to end."""

# below this a step over arrays costs more than a field of each in a loop
_MIN_VECTORIZED_LANES = 24
_LARGE_MESSAGE_BYTES = 32 * 2**10
_MASK64 = 2**64 - 1


class WireFields(NamedTuple):
    """The fields of all messages: those of a message in their order, the messages ascending.

    `tag` is number << 3 | wire type. A VARINT has its value, as a signed number of 64 bits, in
    `begin`; all others lie from `begin` to `end`.
    """

    owner: npt.NDArray[np.int32]
    tag: npt.NDArray[np.int32]
    begin: Ints
    end: Ints

    def take(self, which: npt.NDArray[np.bool_] | Ints) -> WireFields:
        return WireFields(self.owner[which], self.tag[which], self.begin[which], self.end[which])

    def last(self, tag: int, count: int) -> Ints:
        """Return the index of each of `count` messages' last field with this tag, -1 without."""
        found = np.full(count, -1, np.int64)
        at = np.flatnonzero(self.tag == tag)
        found[self.owner[at]] = at
        return found


class WireError(SluiceError, ValueError):
    """A message that can't be one; `owner` is its index, the smallest if there are several."""

    hint = "leave the transaction out: `sluice txn skip`"

    def __init__(self, owner: int) -> None:
        super().__init__(f"message {owner} breaks off or has a field of an unknown wire type")
        self.owner = owner


def scan(data: Bytes, begins: Ints, ends: Ints, run_tag: int = -1) -> WireFields:
    """Return the fields of the messages that lie in `data` from begins[i] to ends[i].

    `run_tag`, a VARINT tag of one byte: where a message has many such fields with values below 128
    in a row, they may be given as one RUN. Raises WireError.
    """
    lanes = np.flatnonzero(begins < ends)
    sizes = ends[lanes] - begins[lanes]
    bad: list[int] = []
    steps: list[WireFields] = []
    tails = lanes[sizes > _LARGE_MESSAGE_BYTES].tolist()
    lanes = lanes[sizes <= _LARGE_MESSAGE_BYTES]
    at = begins[lanes]
    while len(lanes) >= _MIN_VECTORIZED_LANES:
        tag, value, end, good = _step(data, at, ends[lanes])
        if not good.all():
            bad += lanes[~good].tolist()
            lanes, tag, value, end = lanes[good], tag[good], value[good], end[good]
        steps.append(WireFields(lanes.astype(np.int32), tag.astype(np.int32), value, end))
        going = end < ends[lanes]
        lanes, at = lanes[going], end[going]
    unfinished = sorted(
        [*zip(lanes.tolist(), at.tolist()), *((lane, int(begins[lane])) for lane in tails)]
    )
    if unfinished:
        steps.append(
            _one_by_one(
                data, [(lane, place, int(ends[lane])) for lane, place in unfinished], run_tag, bad
            )
        )
    if bad:
        raise WireError(min(bad))
    if len(steps) == 1:
        return steps[0]
    if not steps:
        none = np.zeros(0, np.int64)
        return WireFields(none.astype(np.int32), none.astype(np.int32), none, none)
    every = WireFields(*map(np.concatenate, zip(*steps)))
    return every.take(np.argsort(every.owner, kind="stable"))


def varints(data: Bytes, at: Ints) -> tuple[npt.NDArray[np.uint64], Ints, npt.NDArray[np.bool_]]:
    """Return the varints that begin at these places: values, ends, and which are none.

    None is one longer than ten bytes. What lies behind the end of `data` is anything: compare the
    ends.
    """
    first = data.take(at, mode="clip")
    value = (first & 0x7F).astype(np.uint64)
    end = at + 1
    more = np.flatnonzero(first > 0x7F)
    for shift in range(7, 70, 7):
        if not len(more):
            break
        byte = data.take(end[more], mode="clip")
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        end[more] += 1
        more = more[byte > 0x7F]
    endless = np.zeros(len(at), np.bool_)
    endless[more] = True
    return value, end, endless


def _step(data: Bytes, at: Ints, stops: Ints) -> tuple[Ints, Ints, Ints, npt.NDArray[np.bool_]]:
    """Return one field of each message: tag, begin or value, end, and whether it is one."""
    raw, begin, endless = varints(data, at)
    good = ~endless & (raw >= 8) & (raw < 2**32)
    tag = raw.astype(np.int64)
    wire = tag & 7
    value, behind, endless = varints(data, begin)
    whole = wire == VARINT
    sized = wire == LENGTH
    good &= ~endless | ~(whole | sized)
    # A length with the highest bits set is negative here, and too long as an unsigned number.
    length = value.view(np.int64)
    room = stops - behind
    good &= ~sized | ((length >= 0) & (length <= room))
    good &= whole | sized | (wire == FIXED64) | (wire == FIXED32)
    out = np.where(sized, behind, np.where(whole, length, begin))
    end = np.where(whole, behind, begin + np.where(wire == FIXED64, 8, 4))
    end = np.where(sized & good, behind + length, end)
    good &= end <= stops
    return tag, out, end, good


def _one_by_one(
    data: Bytes, messages: list[tuple[int, int, int]], run_tag: int, bad: list[int]
) -> WireFields:
    """Return the fields of messages (owner, where to begin, where it ends).

    The owners of those that are none go to `bad`.
    """
    owners, tags, begins, ends = array("i"), array("i"), array("q"), array("q")
    found, view = (tags, begins, ends), data.data
    for owner, at, stop in messages:
        try:
            _walk(view, at, stop, run_tag, found)
        except (
            IndexError,
            OverflowError,
            ValueError,
        ):  # behind the end of all, longer than a varint, or no field
            bad.append(owner)
        owners.extend(array("i", [owner]) * (len(tags) - len(owners)))
    return WireFields(
        np.frombuffer(owners, np.int32),
        np.frombuffer(tags, np.int32),
        np.frombuffer(begins, np.int64),
        np.frombuffer(ends, np.int64),
    )


def _walk(
    view: memoryview,
    at: int,
    stop: int,
    run_tag: int,
    found: tuple[array[int], array[int], array[int]],
) -> None:
    """Add the fields of one message to `found`: tags, where they begin, where they end."""
    add_tag, add_begin, add_end = (column.append for column in found)
    while at < stop:
        tag = view[at]
        at += 1
        if tag > 0x7F:
            tag, at = _varint(view, tag, at)
        wire = tag & 7
        if wire == LENGTH:
            length = view[at]
            at += 1
            if length > 0x7F:
                length, at = _varint(view, length, at)
            begin = at
            at += length
        elif wire == VARINT:
            if (
                tag == run_tag
                and at + 1 < stop
                and view[at + 1] == tag
                and (end := _run_end(np.frombuffer(view, np.uint8), at - 1, stop, tag)) > at + 1
            ):
                tag, begin, at = tag | RUN_WIRE_TYPE, at - 1, end
            else:
                begin = view[at]
                at += 1
                if begin > 0x7F:
                    begin, at = _varint(view, begin, at)
                    if begin > _MASK64 >> 1:
                        begin -= _MASK64 + 1
        elif wire in (FIXED64, FIXED32):
            begin = at
            at += 8 if wire == FIXED64 else 4
        else:
            raise ValueError
        if at > stop or not 8 <= tag < 2**32:
            raise ValueError
        add_tag(tag if tag < 2**31 else -1)
        add_begin(begin)
        add_end(at)


def _varint(view: memoryview, first: int, at: int) -> tuple[int, int]:
    """Return the varint whose first byte has been read.

    OverflowError if it is longer than ten bytes.
    """
    byte = view[at]
    if byte < 0x80:
        return (first - 0x80) | (byte << 7), at + 1
    value = first & 0x7F
    for shift in range(7, 70, 7):
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, at
    raise OverflowError


def _run_end(data: Bytes, at: int, stop: int, tag: int) -> int:
    """Return where the fields ``tag, value < 128`` end that begin at `at`."""
    pairs = 64
    while at < stop:
        piece = data[at : min(at + 2 * pairs, stop)]
        piece = piece[: len(piece) // 2 * 2].reshape(-1, 2)
        fits = (piece[:, 0] == tag) & (piece[:, 1] < 0x80)
        if not fits.all():
            return at + 2 * int(np.argmin(fits))
        if not len(piece):
            break
        at += 2 * len(piece)
        pairs = min(2 * pairs, 2**19)
    return at
