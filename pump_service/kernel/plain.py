"""The kernel in Python, for where it can't be compiled."""

# ruff: noqa: PLR0913 - the arguments are those of the compiled functions, which take them by position

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

_HEADER = Struct("<IQI")
_KEY = Struct(">Q")
_POINTER = Struct("<Iq")


def calls(
    data: bytes,
    pos: int,
    block: bytes,
    opened: dict[int, Any],
    terms: tuple[bytes, int, bool, type[tuple[Any, ...]]],
    largest: int,
    last: int,
    room: int,
    records: list[Any],
    streams: list[int],
    /,
) -> tuple[int, int, int]:
    """Takes the WriteBinlog calls that begin at data[pos] and are as nearly all are, up to the first frame that isn't.

    `block`: the header block of such a call. `opened`: streams of which nothing but the headers has come (None).
    `terms`: how a WriteBinlogReq of this cluster begins, the highest timestamp, whether Prewrites are taken, and what
    a record is (tp, start_ts, commit_ts, payload). `largest`: bytes of a DATA frame. `last`: the highest stream so far.
    `room`: how many calls may still be opened. Appends to `records` and `streams`. Returns where it ended, the highest
    stream then, and how many bytes of DATA frames it took.

    Here it takes none: the lane goes frame by frame.
    """
    return pos, last, 0


def replies(streams: list[int], parts: tuple[bytes, bytes, bytes, bytes], /) -> bytes:
    """An answer for each stream; its number stands between the parts."""
    return b"".join([stream.to_bytes(4, "big").join(parts) for stream in streams])


def framed(
    payloads: tuple[bytes, ...], first: int, offset: int, limit: int, magic: int, crc32c: Callable[[bytes], int], /
) -> tuple[bytes, list[int]]:
    """Records of the value log, header and payload, one behind the other, and the offset of each. It begins with
    payloads[first] at `offset` and ends behind the first record that passes `limit`.
    """
    parts: list[bytes] = []
    offsets: list[int] = []
    pack, size_of_header = _HEADER.pack, _HEADER.size
    for payload in payloads[first:] if first else payloads:
        length = len(payload)
        parts.append(pack(magic, length, crc32c(payload)))
        parts.append(payload)
        offsets.append(offset)
        offset += size_of_header + length
        if offset > limit:
            break
    return b"".join(parts), offsets


def put_entries(
    put: Callable[[bytes, bytes], object],
    prefix: bytes,
    fid: int,
    tps: Sequence[int],
    starts: Sequence[int],
    commits: Sequence[int],
    offsets: Sequence[int],
    /,
) -> None:
    """Puts the index's entry of each record: `prefix` and its timestamp, and where it lies."""
    key, pointer = _KEY.pack, _POINTER.pack
    for tp, start, commit, offset in zip(tps, starts, commits, offsets, strict=True):
        put(prefix + key(commit if tp else start), pointer(fid, offset))
