"""Describe a full snapshot in the archive: its tables, their files, and one that is being made."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sluice.relay.checksummed import decode_checksummed, encode_checksummed
from sluice.relay.json_codec import OMIT_DEFAULT, JsonDocument
from sluice.tidb.table_name import full_name

FORMAT = 1
FOLDER = "snapshots"
MANIFEST = "snapshot.json"
SNAPSHOT_ID = re.compile(r"(\d{1,20})-([0-9a-z]{1,40})\Z")


@dataclass(frozen=True, slots=True)
class SnapshotFile(JsonDocument):
    """A Parquet file of a snapshot.

    `path` relative to the archive's root, `bytes` and `crc32c` of the whole file, `row_bytes` of
    the rows in memory. `computed`: the stored generated columns that it holds; files of older
    versions hold none.
    """

    JSON_NAME: ClassVar = "a snapshot's file"
    JSON_FIELDS: ClassVar = {"computed": OMIT_DEFAULT}

    path: str
    rows: int
    bytes: int
    crc32c: int
    row_bytes: int
    computed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotTable(JsonDocument):
    """A table, view or sequence: its names, its definition and its rows.

    The definition is JSON as the snapshot's maker wrote it. The rows are in no order.
    """

    JSON_COMPLETE: ClassVar = True

    schema: str
    name: str
    table: Mapping[str, Any]
    files: tuple[SnapshotFile, ...] = ()

    @property
    def full_name(self) -> str:
        """Return `schema.table` upstream."""
        return full_name(self.schema, self.name)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def holds(self, column: str) -> bool:
        """Return whether each of its files holds this stored generated column.

        One without rows lacks nothing.
        """
        return all(column in file.computed for file in self.files)

    @property
    def file_bytes(self) -> int:
        """Return the bytes of its files."""
        return sum(file.bytes for file in self.files)

    @property
    def row_bytes(self) -> int:
        """Return the bytes of its rows in memory."""
        return sum(file.row_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class ArchiveSnapshot(JsonDocument):
    """All tables as of `ts` (TSO): every transaction through it is inside, none after.

    `schemas` are the databases as their maker wrote them (JSON), `made_from` describes for people
    what it was made from, `made_ms` is a Unix time.
    """

    JSON_NAME: ClassVar = "the manifest"
    JSON_COMPLETE: ClassVar = True

    id: str
    ts: int
    schema_version: int
    cluster_id: int
    made_ms: int
    made_from: str
    schemas: tuple[Mapping[str, Any], ...] = ()
    tables: tuple[SnapshotTable, ...] = ()

    @property
    def path(self) -> str:
        """Return the path of its manifest, in the archive."""
        return f"{FOLDER}/{self.id}/{MANIFEST}"

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    @property
    def file_bytes(self) -> int:
        """Return the bytes of all files that it names, wherever they lie."""
        return sum(table.file_bytes for table in self.tables)

    @property
    def row_bytes(self) -> int:
        """Return the bytes of its rows in memory."""
        return sum(table.row_bytes for table in self.tables)

    @property
    def refers_to(self) -> tuple[str, ...]:
        """Return the ids of older snapshots in whose folders files of this one lie."""
        folders = {file.path.split("/")[1] for table in self.tables for file in table.files}
        return tuple(sorted(folders - {self.id}))

    def table(self, schema: str, name: str) -> SnapshotTable | None:
        """Return the table of that name, None if there is none."""
        return next((one for one in self.tables if (one.schema, one.name) == (schema, name)), None)

    def to_bytes(self) -> bytes:
        """Return the manifest as its file has it."""
        return encode_checksummed({"format": FORMAT, **self.to_json()})

    @classmethod
    def from_bytes(cls, data: bytes) -> ArchiveSnapshot:
        """Parse a manifest.

        Strict: raises ValueError on a wrong checksum, format, field or type.
        """
        return cls.from_json(decode_checksummed(data, FORMAT))


@dataclass(frozen=True, slots=True)
class PendingSnapshot(JsonDocument):
    """A snapshot in the making: its job, and the older snapshots whose files it may name."""

    JSON_NAME: ClassVar = "the note of a snapshot that is being made"
    JSON_COMPLETE: ClassVar = True

    job: str
    refers_to: tuple[str, ...] = ()
    made_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def to_bytes(self) -> bytes:
        """Return the file's content."""
        return encode_checksummed({"format": FORMAT, **self.to_json()})

    @classmethod
    def from_bytes(cls, data: bytes) -> PendingSnapshot:
        """Parse what `to_bytes` wrote. Raises ValueError."""
        return cls.from_json(decode_checksummed(data, FORMAT))


def ts_of_snapshot(name: str) -> int:
    """Return the timestamp (TSO) in a snapshot's name."""
    return int(name.partition("-")[0])


def snapshot_id(ts: int, token: str) -> str:
    """Return the name of a snapshot as of `ts` (TSO).

    `token` (digits and lower case letters) distinguishes it from others. Names sort by timestamp.
    """
    return f"{ts:020d}-{token}"
