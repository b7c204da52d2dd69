"""Implement the kernel in Python, for where it can't be compiled."""

# ruff: noqa: PLR0913 - the arguments are those of the compiled functions, which take them by position

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, TypeVar

from sluice.tidb.codec.varint import encode_uvarint

Record = TypeVar("Record", bound=tuple[Any, ...])
Origin = TypeVar("Origin")

_HEADER = Struct("<IQI")
_KEY = Struct(">Q")
_POINTER = Struct("<Iq")
ENDED_PER_GENERATION = 16_384
"""Ended transactions until the former as many are forgotten: a table that fits into a core's cache.
"""
_NO_DDL = b"\x38\x00\x40\x00"
# Records as TiDB writes nearly all of them: nine-byte timestamps, then a prewrite_key of less than
# 128 bytes.
_COMMIT = re.compile(
    rb"\x08\x01\x10[\x80-\xff]{8}[\x00-\x7f]\x18[\x80-\xff]{8}[\x00-\x7f]\x22[\x00-\x7f]"
)
_PREWRITE = re.compile(rb"\x08\x00\x10[\x80-\xff]{8}[\x00-\x7f]\x18\x00\x22[\x00-\x7f]")
# start_ts and commit_ts of nine bytes each, at [3:12] and [13:22]: those of any time since 1978
_NINE_BYTE_HEAD = re.compile(
    rb"\x08[\x00-\x7f]\x10[\x80-\xff]{8}[\x00-\x7f]\x18[\x80-\xff]{8}[\x00-\x7f]"
)


def calls(
    data: bytes,
    pos: int,
    block: bytes | None,
    opens: Callable[[bytes], bool],
    opened: dict[int, Any],
    terms: tuple[bytes, int, bool, type[tuple[Any, ...]]],
    largest: int,
    last: int,
    room: int,
    records: list[Any],
    streams: list[int],
    /,
) -> tuple[int, int, int]:
    """Take the usual WriteBinlog calls that begin at data[pos], up to the first unusual frame.

    `block`: the header block of such a call, if one is known; `opens` is asked about others, and
    if it denies, the frame is left; it must not raise. `opened`: streams of which nothing but the
    headers has been received (None). `terms`: how a WriteBinlogReq of this cluster begins, the
    highest timestamp, whether Prewrites are taken, and what a record is (tp, start_ts, commit_ts,
    payload). `largest`: bytes of a DATA frame. `last`: the highest stream so far. `room`: how many
    calls may still be opened. Appends to `records` and `streams`. Returns where it ended, the
    highest stream then, and how many bytes of DATA frames it took.

    Here it takes none: the lane goes frame by frame.
    """
    return pos, last, 0


def replies(streams: list[int], parts: tuple[bytes, bytes, bytes, bytes], /) -> bytes:
    """Return an answer for each stream; its number stands between the parts."""
    return b"".join([stream.to_bytes(4, "big").join(parts) for stream in streams])


def framed(
    payloads: tuple[bytes, ...],
    first: int,
    offset: int,
    limit: int,
    magic: int,
    crc32c: Callable[[bytes], int],
    /,
) -> tuple[bytes, list[int]]:
    """Return records of the value log, header and payload in sequence, and the offset of each.

    It begins with payloads[first] at `offset` and ends behind the first record that passes
    `limit`.
    """
    parts, offsets = framed_parts(payloads, first, offset, limit, magic, crc32c)
    return b"".join(parts), offsets


def framed_parts(
    payloads: tuple[bytes, ...],
    first: int,
    offset: int,
    limit: int,
    magic: int,
    crc32c: Callable[[bytes], int],
    /,
) -> tuple[list[bytes], list[int]]:
    """Return what `framed` does, each header and payload by itself: nothing is copied."""
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
    return parts, offsets


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
    """Put the index's entry of each record: `prefix` and its timestamp, and where it lies."""
    key, pointer = _KEY.pack, _POINTER.pack
    for tp, start, commit, offset in zip(tps, starts, commits, offsets, strict=True):
        put(prefix + key(commit if tp else start), pointer(fid, offset))


class _EndedTransactions:
    """Hold the start_ts of the transactions that ended last, in two generations."""

    __slots__ = ("current", "dropped_ts", "former")

    def __init__(self) -> None:
        self.current: set[int] = set()
        self.former: set[int] = set()
        self.dropped_ts = 0
        """The highest start_ts of what is no longer held."""

    def add(self, start_ts: int) -> None:
        if len(self.current) == ENDED_PER_GENERATION:
            self.dropped_ts = max(self.dropped_ts, max(self.former, default=0))
            self.current, self.former = set(), self.current
        self.current.add(start_ts)


def no_ended() -> Any:
    """Return what `note` keeps of ended transactions, at the start."""
    return _EndedTransactions()


def note(
    records: Sequence[Record],
    origin: Origin,
    of: dict[int, Origin],
    ended: Any,
    old_ts: int,
    repeated: list[Record],
    old: list[Record],
    /,
) -> bool:
    """Note the Prewrites that open, and the outcomes, among records (tp, start_ts, …).

    `of` has the origin of open Prewrites, `ended` (of `no_ended`) the transactions that ended
    lately. A Prewrite of either goes to `repeated`. Another one that began by `old_ts`, or before
    one that `ended` holds no longer, goes to `old`. Returns False if the Prewrite of an outcome
    isn't in `of`.
    """
    old_ts = max(old_ts, ended.dropped_ts)
    all_first = True
    for record in records:
        tp, start_ts = record[:2]
        if tp:
            if of.pop(start_ts, None) is None:
                all_first = False
            else:
                ended.add(start_ts)
        elif start_ts in of or start_ts in ended.current or start_ts in ended.former:
            repeated.append(record)
        elif start_ts > old_ts:
            of[start_ts] = origin
        else:
            old.append(record)
    return all_first


def merged(commit: bytes, prewrite: bytes, /) -> bytes | None:
    """Merge the prewrite_value of its Prewrite into a Commit.

    Returns None unless both are as TiDB writes them for rows.
    """
    if (
        _COMMIT.match(commit)
        and commit[23] == len(commit) - 28  # the key, and nothing but the tail behind it
        and commit.endswith(_NO_DDL)
        and _PREWRITE.match(prewrite)
        and prewrite.endswith(_NO_DDL)
        and prewrite.startswith(commit[22:-4], 14)
    ):
        key_end = len(commit) - 12
        if prewrite[key_end : key_end + 1] == b"\x2a":
            return commit[:-4] + prewrite[key_end:]
    return None


def pull_message(payload: bytes, start_ts: int, commit_ts: int, /) -> bytes:
    """Return a PullBinlogResp with its gRPC prefix, as Go writes it: the empty position present.

    0a len {0a 00 (pos)  12 len payload  22 len {08 startTs  10 commitTs}}
    """
    if _NINE_BYTE_HEAD.match(payload):
        # they are encoded in the payload already
        times = b"\x22\x14\x08" + payload[3:12] + b"\x10" + payload[13:22]
    else:
        meta = b"\x08" + encode_uvarint(start_ts) + b"\x10" + encode_uvarint(commit_ts)
        times = b"\x22" + encode_uvarint(len(meta)) + meta
    size = encode_uvarint(len(payload))
    inner = 3 + len(size) + len(payload) + len(times)
    outer = encode_uvarint(inner)
    prefix = b"\0" + (1 + len(outer) + inner).to_bytes(4, "big")
    return b"".join((prefix, b"\x0a", outer, b"\x0a\x00\x12", size, payload, times))


def fields(
    block: bytes, fixed: tuple[tuple[bytes, bytes], ...], entries: Sequence[tuple[bytes, bytes]], /
) -> tuple[tuple[tuple[bytes, bytes], ...], list[tuple[bytes, bytes]]] | None:
    """Return the fields of an HPACK block, and which of them go into the table of `entries`.

    `entries` are newest first and lie behind the `fixed` ones. Returns None if the block is wrong
    or unusual: not a usual client's, which refers to nothing that it has just inserted.

    Here it is always None: `HpackDecoder` does it all.
    """
    return None
