"""A volume: a range of the archive's past, with the files that hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sluice.tidb import tso


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file of the archive: `path` from its root, `bytes` and `crc32c` of the whole file."""

    path: str
    bytes: int
    rows: int
    crc32c: int

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return to_json_fields(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ArchiveFile:
        """Strict: every field, nothing else, right types. Raises ValueError."""
        return cls(**checked_fields("a file", raw, _FILE_FIELDS))


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of the lake: changes of one table and schema version on one UTC day (YYYY-MM-DD)."""

    path: str
    bytes: int
    rows: int
    crc32c: int
    schema: str
    table: str
    table_id: int
    schema_version: int
    day: str

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return to_json_fields(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> LakeFile:
        """Strict: every field, nothing else, right types. Raises ValueError."""
        return cls(**checked_fields("a lake file", raw, _LAKE_FILE_FIELDS))


@dataclass(frozen=True, slots=True)
class ArchiveSegment:
    """The range `(lo, hi]` (TSO) of the archive."""

    lo: int
    hi: int
    cluster_id: int
    token: str
    """The token of the run that wrote it; part of its files' names."""
    archived_ms: int
    """Unix time in ms."""
    windows: int
    """Number of windows in the index; several of the relay log's may have become one."""
    transactions: int
    changes: int
    schema_version: int
    """TiDB's schema version at hi."""
    binlog_bytes: int
    """Size of the relay log's parts that it was made from."""
    log: ArchiveFile | None
    """None if nothing was changed."""
    index: ArchiveFile
    lake: tuple[LakeFile, ...] = ()
    tables: Mapping[int, int] = field(default_factory=dict)
    """Number of changes of each table, by id."""

    @property
    def day(self) -> str:
        """Return the UTC day that it begins on."""
        return day_of(self.lo)

    @property
    def files(self) -> tuple[ArchiveFile | LakeFile, ...]:
        """Return all of them."""
        return (*((self.log,) if self.log else ()), self.index, *self.lake)

    @property
    def bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(file.bytes for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return to_json_fields(self) | {
            "log": self.log.to_json() if self.log else None,
            "index": self.index.to_json(),
            "lake": [file.to_json() for file in self.lake],
            "tables": {str(table_id): changes for table_id, changes in sorted(self.tables.items())},
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ArchiveSegment:
        """Strict: every field, nothing else, right types, a range that isn't empty.

        Raises ValueError.
        """
        values = checked_fields("a volume", raw, _SEGMENT_FIELDS)
        if not 0 <= values["lo"] < values["hi"]:
            raise ValueError(
                f"the volume ({values['lo']}, {values['hi']}] is empty or turned round"
            )
        tables = values["tables"]
        if not all(type(changes) is int for changes in tables.values()):
            raise ValueError(f"field tables is {tables!r}, expected changes by table id")
        return cls(
            **values
            | {
                "log": None if values["log"] is None else ArchiveFile.from_json(values["log"]),
                "index": ArchiveFile.from_json(values["index"]),
                "lake": tuple(LakeFile.from_json(file) for file in values["lake"]),
                "tables": {int(table_id): changes for table_id, changes in tables.items()},
            }
        )


_FILE_FIELDS: dict[str, type | tuple[type, ...]] = {
    "path": str,
    "bytes": int,
    "rows": int,
    "crc32c": int,
}
_LAKE_FILE_FIELDS = _FILE_FIELDS | {
    "schema": str,
    "table": str,
    "table_id": int,
    "schema_version": int,
    "day": str,
}
_SEGMENT_FIELDS: dict[str, type | tuple[type, ...]] = {
    "lo": int,
    "hi": int,
    "cluster_id": int,
    "token": str,
    "archived_ms": int,
    "windows": int,
    "transactions": int,
    "changes": int,
    "schema_version": int,
    "binlog_bytes": int,
    "log": (dict, type(None)),
    "index": dict,
    "lake": list,
    "tables": dict,
}


def to_json_fields(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields as they are; the caller converts what JSON can't hold."""
    return {entry.name: getattr(value, entry.name) for entry in fields(value)}


def checked_fields(
    what: str, raw: Any, kinds: Mapping[str, type | tuple[type, ...]]
) -> dict[str, Any]:
    """`raw` if it is an object with these fields, no others, of these types. Raises ValueError."""
    if type(raw) is not dict or set(raw) != set(kinds):
        there = sorted(raw) if type(raw) is dict else repr(raw)[:100]
        raise ValueError(f"{what} has the fields {there}, expected {sorted(kinds)}")
    for name, kind in kinds.items():
        if type(raw[name]) not in (kind if isinstance(kind, tuple) else (kind,)):
            raise ValueError(f"{what}: field {name} is {raw[name]!r}")
    return raw


def day_of(ts: int) -> str:
    """UTC day of a TSO, as the folders are named: ``2026-11-22``."""
    return tso.to_datetime(ts).strftime("%Y-%m-%d")
