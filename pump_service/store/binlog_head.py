"""Read the few fields of a binlog.Binlog message that the store needs, without building it.

TiDB's Go encoder writes the fields in ascending order: `08 tp 10 start_ts 18 commit_ts [22
prewrite_key] [2a prewrite_value] [32 ddl_query] 38 ddl_job_id 40 ddl_schema_state`. tp, timestamps,
job id and state are always present. Other orders and absent fields are legal protobuf and take the
slower path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.pump_service import kernel
from sluice.tidb.codec.varint import encode_uvarint

Ints = npt.NDArray[np.int64]

HEAD_BYTES = 22
"""Bytes that `parse_heads` reads: tag and tp, then twice a tag and 9 bytes of timestamp."""


_NO_DDL = b"\x38\x00\x40\x00"


class BinlogHead(NamedTuple):
    """Hold tp, start_ts and commit_ts of a Binlog; absent fields are 0."""

    tp: int
    start_ts: int
    commit_ts: int


class BinlogField(NamedTuple):
    """Describe a top-level field.

    Number, wire type, begin of tag and value, end, varint's value.
    """

    number: int
    wire: int
    begin: int
    value_begin: int
    end: int
    varint: int


# Not sluice.tidb.codec.varint's decoder: here bits beyond 64 in a tenth byte are dropped, as
# protobuf does; in TiDB's rows they are damage.
def _varint(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if pos >= len(data) or shift > 63:
            raise ValueError(
                f"broken varint at byte {pos} of a Binlog message of {len(data)} bytes"
            )
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, pos
        shift += 7


def fields(data: bytes) -> Iterator[BinlogField]:
    """Yield the top-level fields. Raises ValueError where the message is broken."""
    pos = 0
    while pos < len(data):
        begin = pos
        tag, pos = _varint(data, pos)
        wire = tag & 7
        value = 0
        value_begin = pos
        if wire == 0:
            value, pos = _varint(data, pos)
        elif wire == 1:
            pos += 8
        elif wire == 2:
            size, value_begin = _varint(data, pos)
            pos = value_begin + size
        elif wire == 5:
            pos += 4
        else:
            raise ValueError(f"wire type {wire} at byte {begin} of a Binlog message")
        if pos > len(data):
            raise ValueError(
                f"field {tag >> 3} at byte {begin} ends beyond the Binlog message of {len(data)}"
                " bytes"
            )
        yield BinlogField(tag >> 3, wire, begin, value_begin, pos, value)


def parse_head(payload: bytes) -> BinlogHead:
    """Return tp, start_ts and commit_ts of a message. Raises ValueError if it isn't protobuf."""
    tp = start = commit = 0
    for field in fields(payload):
        if field.wire != 0:
            continue
        if field.number == 1:
            tp = field.varint
        elif field.number == 2:
            start = field.varint
        elif field.number == 3:
            commit = field.varint
    return BinlogHead(tp, start, commit)


def stored_head(payload: bytes) -> BinlogHead:
    """Return the head as all readers of the store see it.

    In the encoder's order that is the first fields, else the last value of each. Legal protobuf may
    repeat a field, and then protobuf's own answer differs. Raises ValueError as parse_head.
    """
    head = np.frombuffer(payload[:HEAD_BYTES].ljust(HEAD_BYTES, b"\0"), np.uint8).reshape(1, -1)
    tps, starts, commits, right = parse_heads(head, np.array([len(payload)], np.int64))
    return (
        BinlogHead(int(tps[0]), int(starts[0]), int(commits[0]))
        if right[0]
        else parse_head(payload)
    )


def prewrite_key(payload: bytes) -> bytes:
    """Return the transaction's primary key (raw TiKV key), b"" if absent."""
    key = b""
    for field in fields(payload):
        if field.number == 4 and field.wire == 2:
            key = payload[field.value_begin : field.end]
    return key


def encode_outcome(tp: int, start_ts: int, commit_ts: int) -> bytes:
    """Return a Binlog with only an outcome, byte for byte as the original's encoder writes it."""
    return b"".join(
        (
            b"\x08",
            encode_uvarint(tp),
            b"\x10",
            encode_uvarint(start_ts),
            b"\x18",
            encode_uvarint(commit_ts),
            b"\x38\x00\x40\x00",
        )
    )


def merge(commit: bytes, prewrite: bytes) -> bytes:
    """Return the message for a puller: the Commit with the data fields of its Prewrite.

    These are prewrite_value, ddl_query, ddl_job_id and ddl_schema_state; only the Prewrite is sure
    to have them.
    """
    usual = kernel.merged(commit, prewrite)
    if usual is not None:
        return usual
    head_end, body = _after_key(commit), _after_key(prewrite)
    if head_end and body and commit[head_end:] == _NO_DDL and prewrite[body : body + 1] == b"\x2a":
        value_end = _end_of_bytes(prewrite, body)
        if prewrite[value_end:] == _NO_DDL:
            return commit[:head_end] + prewrite[body:]
    first, rest = [], []
    for field in fields(commit):
        if field.number <= 4:
            first.append(commit[field.begin : field.end])
        elif field.number > 8:
            rest.append(commit[field.begin : field.end])
    middle = [
        prewrite[field.begin : field.end] for field in fields(prewrite) if 5 <= field.number <= 8
    ]
    return b"".join(first + middle + rest)


def _after_key(payload: bytes) -> int:
    """Return where the fields behind prewrite_key begin.

    0 if the message isn't in the encoder's order.
    """
    if (
        len(payload) < 14
        or payload[0] != 0x08
        or payload[2] != 0x10
        or payload[11] >= 0x80
        or payload[12] != 0x18
    ):
        return 0
    if min(payload[3:11]) < 0x80 or payload[1] >= 0x80:
        return 0
    pos = 14
    if payload[13] >= 0x80:
        if len(payload) < HEAD_BYTES or payload[21] >= 0x80 or min(payload[13:21]) < 0x80:
            return 0
        pos = HEAD_BYTES
    return _end_of_bytes(payload, pos) if payload[pos : pos + 1] == b"\x22" else pos


def _end_of_bytes(payload: bytes, tag: int) -> int:
    """Return the end of the length-delimited field with a one-byte tag at `tag`."""
    size, begin = _varint(payload, tag + 1)
    return begin + size


def parse_heads(
    heads: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]
) -> tuple[
    npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]
]:
    """Return tp, start_ts and commit_ts of many messages, and which rows are valid.

    `heads` has a row of HEAD_BYTES per message: its first bytes, then arbitrary bytes if `lengths`
    is smaller. A row is valid in the encoder's order with timestamps of 9 bytes (every real TSO)
    or, for commit_ts, also one byte. The caller parses the others one by one.
    """
    tp = heads[:, 1].astype(np.int64)
    start, start_ok = _varint9(heads[:, 3:12])
    commit9, commit_ok = _varint9(heads[:, 13:22])
    short = heads[:, 13] < 0x80
    commit = np.where(short, heads[:, 13].astype(np.int64), commit9)
    right = (
        (heads[:, 0] == 0x08)
        & (heads[:, 1] < 0x80)
        & (heads[:, 2] == 0x10)
        & start_ok
        & (heads[:, 12] == 0x18)
        & (commit_ok | short)
        & (lengths >= np.where(short, 14, HEAD_BYTES))
    )
    return tp, start, commit, right


def rows_at(data: npt.NDArray[np.uint8], offsets: Ints, width: int) -> npt.NDArray[np.uint8]:
    """Return a row of `width` bytes for each offset.

    Each offset must have as many bytes behind it.
    """
    windows = np.lib.stride_tricks.as_strided(
        data, (len(data) - width + 1, width), (1, 1), writeable=False
    )
    return windows[offsets]


def _varint9(columns: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    value = (columns[:, 0] & 0x7F).astype(np.int64)
    ok = columns[:, 0] >= 0x80
    for i in range(1, 9):
        value |= (columns[:, i] & 0x7F).astype(np.int64) << (7 * i)
        ok &= (columns[:, i] >= 0x80) if i < 8 else (columns[:, i] < 0x80)
    return value, ok
