"""Hold messages for a topic, and the row changes that encoders make them of.

Encoders work on whole Arrow columns in Spark's workers. So messages travel as frames, each change's
one behind another, until the sink splits them:

    commit_ts i64 | key bytes i32 | value bytes i32 | header bytes u32 | headers | key | value

All numbers are little-endian, a size of -1 stands for null. Headers are `name NUL value`, separated
by NUL, too. In front of the frames of a change its hashes decide on their partitions:

    hash of the old image u32 | hash of the new image u32 | bytes of the frames u32 | frames

The last message of a change is about the new image, all before it about the old one.
"""

from __future__ import annotations

import functools
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.etl.changes.formats.sql_columns import join
from sluice.etl.changes.steps import ChangeError, MessageSchema
from sluice.relay import DELETE
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column, Table
from sluice.tidb.table_name import full_name

BINARY = pa.large_binary()
Images = dict[str, pa.Array]
"""A column each, by name; ENUM and SET as uint64."""

_HEAD = struct.Struct("<qiiI")
_HEADS = np.dtype([("commit_ts", "<i8"), ("key", "<i4"), ("value", "<i4"), ("headers", "<u4")])
_HASHES_HEAD = struct.Struct("<III")
_HASHES_HEADS = np.dtype([("old", "<u4"), ("new", "<u4"), ("frames", "<u4")])
_NULL_SIZE = -1
_KEPT_HEADERS = 256
"""Changes of one table in one transaction have the same headers, and come close together."""


class Message(NamedTuple):
    """A message of a topic."""

    commit_ts: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def size(self) -> int:
        """Return the bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


class TransactionPlace(NamedTuple):
    """Where a message is in its upstream transaction, as Debezium's transaction metadata has it.

    Both orders begin with 1. Tombstones don't count.
    """

    total_order: int
    data_collection_order: int
    """Among the messages of its table."""


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Changes of one kind in one table.

    `old` has updates and deletes, `new` inserts and updates; the other is empty.
    """

    table: Table
    kind: int
    old: Images
    new: Images
    commit_ts: npt.NDArray[np.int64]
    start_ts: npt.NDArray[np.int64]
    built_ms: int
    """When the messages are made, in Unix ms."""
    snapshot: bool = False
    """Inserts are rows that were there at `commit_ts`, which a copy read: no transaction made them.
    """

    def __len__(self) -> int:
        return len(self.commit_ts)

    @property
    def present(self) -> Images:
        """Return the new images, of deletes the old ones."""
        return self.old if self.kind == DELETE else self.new

    @property
    def columns(self) -> list[Column]:
        """Return the columns that messages have."""
        return shown_columns(self.table)

    def as_kind(self, kind: int) -> RowBatch:
        """Return the halves of updates that are deletes or inserts."""
        old = self.old if kind == DELETE else {}
        return replace(self, kind=kind, old=old, new={} if kind == DELETE else self.new)

    def take(self, places: npt.NDArray[np.int64]) -> RowBatch:
        """Return the changes at some places."""
        chosen = pa.array(places)
        old, new = (
            {name: column.take(chosen) for name, column in images.items()}
            for images in (self.old, self.new)
        )
        return replace(
            self,
            old=old,
            new=new,
            commit_ts=self.commit_ts[places],
            start_ts=self.start_ts[places],
        )


class Encoder(ABC):
    """Encode changes in one format."""

    time_zone: str = "UTC"
    """The zone in which it takes TIMESTAMPs."""
    splits_key_changes = False
    """An update of the key is messages about the old key, and a last one about the new key."""
    describes_tables = False
    """Rows come behind a message with their table's schema, which is in `schemas`, not a registry:
    see `sluice.etl.changes.messages.simple`.
    """

    @property
    def schemas(self) -> list[MessageSchema]:
        """Return the registry's schemas of all messages so far, by the numbers that they have."""
        return []

    def table_schemas(self, table: Table) -> list[MessageSchema]:
        """Return the registry's schemas that messages of a table will have."""
        return []

    def in_transaction(self, message: Message, place: TransactionPlace) -> Message:
        """Return a row's message that names its place, if the format has room for that."""
        return message

    def key_of(self, message: Message, schemas: Sequence[MessageSchema]) -> str:
        """Return the key of a row's message as text; "" without one."""
        return (message.key or b"").decode("utf-8", "backslashreplace")

    def key_only(
        self, message: Message, schemas: Sequence[MessageSchema], location: str
    ) -> Message | None:
        """Return a row's message with the key's columns alone; None where there is no such form.

        It says itself that it is one. `location`: where the whole message is, "" for nowhere.
        """
        return None

    @abstractmethod
    def rows(self, batch: RowBatch) -> pa.LargeBinaryArray:
        """Return the frames of each change's messages."""

    @abstractmethod
    def ddl(self, job: DdlJob, built_ms: int) -> list[Message]:
        """Return the messages of a DDL statement."""

    def truncation(self, job: DdlJob, built_ms: int) -> Message | None:
        """Return the message that TRUNCATE TABLE is for readers of rows; None of others.

        It is besides those of `ddl`.
        """
        return None

    @abstractmethod
    def watermark(self, commit_ts: int, built_ms: int) -> list[Message]:
        """Return the messages that promise that all through `commit_ts` (TSO) was sent."""


def chosen(row: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the columns of a message's row that are named."""
    return {name: value for name, value in row.items() if name in names}


def json_bytes(document: Any) -> bytes:
    """Return compact JSON; text that isn't UTF-8 keeps its escapes."""
    return json.dumps(document, separators=(",", ":")).encode()


def shown_columns(table: Table) -> list[Column]:
    """Return the columns that messages have."""
    return [column for column in table.stored_columns if not column.hidden]


def ungiven(column: Column) -> ChangeError:
    """Return the error of a NULL in a column that has none."""
    return ChangeError(
        f"column {column.name!r} is NOT NULL, and a row has NULL in it: the format has no form for"
        " that",
    )


def handle_key(table: Table) -> tuple[str, ...]:
    """Return the columns of the primary key, else of the first unique key without NULLs; else ().

    This is what TiCDC calls the handle key.
    """
    columns = {column.name: column for column in table.columns}
    for names in table.unique_keys()[:1]:
        if names == table.primary_key or all(columns[name].not_null for name in names):
            return names
    return ()


def digits(numbers: npt.NDArray[Any] | pa.Array) -> pa.LargeBinaryArray:
    """Return whole numbers as text; nulls stay null."""
    array = numbers if isinstance(numbers, pa.Array) else pa.array(numbers)
    return array.cast(pa.large_string()).cast(BINARY)


def row_headers(batch: RowBatch) -> pa.LargeBinaryArray:
    """Return each change's headers: its commit ts, its start ts and the table.

    Rows of a snapshot have a header `snapshot`, too.
    """
    name = batch.table.full_name.encode() + (b"\0snapshot\0true" if batch.snapshot else b"")
    return join(
        b"commit_ts\0",
        digits(batch.commit_ts),
        b"\0start_ts\0",
        digits(batch.start_ts),
        b"\0table\0" + name,
    )


def add_header(
    headers: pa.LargeBinaryArray, name: str, values: pa.LargeBinaryArray
) -> pa.LargeBinaryArray:
    """Return the headers with one more, whose values have no NUL."""
    return join(headers, f"\0{name}\0".encode(), values)


def watermark_headers(commit_ts: int) -> tuple[tuple[str, bytes], ...]:
    """Return the headers of a watermark's message."""
    return (("commit_ts", b"%d" % commit_ts),)


def ddl_headers(job: DdlJob) -> tuple[tuple[str, bytes], ...]:
    """Return the headers of a DDL statement's message, as `row_headers`."""
    name = full_name(job.schema_name, job.table_name) if job.table_name else job.schema_name
    return (
        *watermark_headers(job.commit_ts),
        ("start_ts", b"%d" % job.start_ts),
        ("table", name.encode()),
    )


def frames(
    commit_ts: npt.NDArray[np.int64],
    headers: pa.LargeBinaryArray,
    key: pa.LargeBinaryArray | None,
    value: pa.LargeBinaryArray | None,
) -> pa.LargeBinaryArray:
    """Return one message each; no key or value is null but all of them."""
    heads = np.empty(len(commit_ts), _HEADS)
    heads["commit_ts"], heads["headers"] = commit_ts, sizes(headers)
    for name, part in (("key", key), ("value", value)):
        heads[name] = _NULL_SIZE if part is None else sizes(part)
    return join(packed(heads), headers, *(part for part in (key, value) if part is not None))


def with_hashes(
    changes: pa.LargeBinaryArray, old: npt.NDArray[np.uint32], new: npt.NDArray[np.uint32]
) -> pa.LargeBinaryArray:
    """Return the frames of each change behind the hashes of its images."""
    heads = np.empty(len(changes), _HASHES_HEADS)
    heads["old"], heads["new"], heads["frames"] = old, new, sizes(changes)
    return join(packed(heads), changes)


def split_changes(data: Any) -> Iterator[tuple[int, Message]]:
    """Yield the messages of `with_hashes` in order, each with the hash of its partition.

    Raises ValueError if the bytes-like object `data` is cut off.
    """
    raw, at = bytes(data), 0  # slices of bytes are quicker than of a view
    while at < len(raw):
        first = at + _HASHES_HEAD.size
        if first > len(raw):
            raise ValueError(f"no whole change at byte {at} of {len(raw)}")
        old, new, size = _HASHES_HEAD.unpack_from(raw, at)
        end = first + size
        if end > len(raw):
            raise ValueError(f"no whole change at byte {at} of {len(raw)}")
        at = first
        while at < end:
            message, at = _message_at(raw, at)
            yield (new if at == end else old), message


def split_frames(data: Any) -> Iterator[Message]:
    """Yield the messages of frames, a bytes-like object. Raises ValueError if it is cut off."""
    raw, at = bytes(data), 0
    while at < len(raw):
        message, at = _message_at(raw, at)
        yield message


def _message_at(raw: bytes, at: int) -> tuple[Message, int]:
    """Return the message at a byte, and where it ends."""
    first = at + _HEAD.size
    if first > len(raw):
        raise ValueError(f"no whole message at byte {at} of {len(raw)}")
    commit_ts, key_bytes, value_bytes, header_bytes = _HEAD.unpack_from(raw, at)
    key_at = first + header_bytes
    value_at = key_at + max(0, key_bytes)
    end = value_at + max(0, value_bytes)
    if end > len(raw):
        raise ValueError(f"no whole message at byte {at} of {len(raw)}")
    message = Message(
        commit_ts,
        None if key_bytes == _NULL_SIZE else raw[key_at:value_at],
        None if value_bytes == _NULL_SIZE else raw[value_at:end],
        _split_headers(raw[first:key_at]),
    )
    return message, end


@functools.lru_cache(_KEPT_HEADERS)
def _split_headers(raw: bytes) -> tuple[tuple[str, bytes], ...]:
    parts = raw.split(b"\0")
    return tuple(zip((name.decode() for name in parts[::2]), parts[1::2], strict=True))


def joined(pieces: Sequence[pa.LargeBinaryArray]) -> pa.LargeBinaryArray:
    """Return the messages of several arrays, change by change."""
    return pieces[0] if len(pieces) == 1 else join(*pieces)


def packed(heads: npt.NDArray[Any]) -> pa.LargeBinaryArray:
    """Return the bytes of each number or record."""
    size = heads.dtype.itemsize
    edges = np.arange(0, size * len(heads) + 1, size)
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(heads.tobytes())]
    return pa.LargeBinaryArray.from_buffers(BINARY, len(heads), buffers)


def sizes(array: pa.LargeBinaryArray) -> npt.NDArray[np.int64]:
    """Return the bytes that each value has; 0 of a null."""
    offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, array.offset * 8)
    found: npt.NDArray[np.int64] = np.diff(offsets)
    return found
