"""Schemas, tables, columns and indexes as TiDB's DDL jobs describe them.

Built from the JSON of DBInfo and TableInfo, and written back as a small JSON document of our own
that is part of every window record, so that rows can be decoded long after the upstream has
changed. Column ids, not names or offsets, are what rows carry.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast

from sluice.tidb.columns import (
    STATE_DELETE_ONLY,
    STATE_PUBLIC,
    STATE_WRITE_ONLY,
    WHOLE_COLUMN,
    Column,
    Columns,
    Index,
    SchemaError,
    columns_and_indexes,
    name_of,
)
from sluice.tidb.table_name import full_name

__all__ = [
    "MAX_USER_TABLE_ID",
    "STATE_DELETE_ONLY",
    "STATE_PUBLIC",
    "STATE_WRITE_ONLY",
    "WHOLE_COLUMN",
    "Column",
    "Columns",
    "Index",
    "Schema",
    "SchemaError",
    "Table",
    "parse_object",
]

MAX_USER_TABLE_ID = 0xFFFFFFFFFFFF - 1000
"""Tables with greater ids are TiDB's own (its DDL queue); their changes are no user's data."""


def parse_object(data: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object as TiKV has it. `what`: for messages. Raises SchemaError."""
    try:
        found = json.loads(data)
    except ValueError as error:
        raise SchemaError(f"{what} in TiKV is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise SchemaError(f"{what} in TiKV is a {type(found).__name__}, not an object")
    return found


@dataclass(frozen=True, slots=True)
class Schema:
    """A database (DBInfo)."""

    id: int
    name: str
    charset: str = ""
    collate: str = ""

    @classmethod
    def from_tidb(cls, info: Mapping[str, Any]) -> "Schema":
        """Parse TiDB's DBInfo JSON."""
        try:
            return cls(
                int(info["id"]),
                name_of(info["db_name"]),
                info.get("charset") or "",
                info.get("collate") or "",
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"a DBInfo document lacks or garbles {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `from_json` makes an equal Schema of it."""
        return record_to_json(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Schema":
        """Parse what `to_json` wrote."""
        return cls(**document)


@dataclass(frozen=True, slots=True)
class Table:
    """A table, view or sequence (TableInfo) with the name of its schema.

    `columns` are in offset order and hold every column, also those that are being added, dropped or
    changed. `partition`, `view`, `sequence` and `foreign_keys` are TiDB's PartitionInfo, ViewInfo,
    SequenceInfo and FKInfos as they came; `auto_increment` is the AUTO_INCREMENT a statement set, 0
    for none. `history` is set in tables as rules shape them, of which the downstream keeps every
    version: the columns there for when a version began, when it ended, and its commit timestamp.
    """

    id: int
    schema_id: int
    schema_name: str
    name: str
    columns: tuple[Column, ...] = ()
    indexes: tuple[Index, ...] = ()
    charset: str = ""
    collate: str = ""
    pk_is_handle: bool = False
    is_common_handle: bool = False
    common_handle_version: int = 0
    state: int = STATE_PUBLIC
    comment: str = ""
    auto_random_bits: int = 0
    temp_table_type: int = 0
    is_view: bool = False
    is_sequence: bool = False
    partition: dict[str, Any] | None = field(default=None, hash=False)
    view: dict[str, Any] | None = field(default=None, hash=False)
    sequence: dict[str, Any] | None = field(default=None, hash=False)
    foreign_keys: tuple[dict[str, Any], ...] = field(default=(), hash=False)
    auto_increment: int = 0
    history: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.columns) is not Columns:
            object.__setattr__(self, "columns", Columns(self.columns))

    @classmethod
    def from_tidb(cls, info: Mapping[str, Any], schema_id: int, schema_name: str) -> "Table":
        """Parse TiDB's TableInfo JSON; arrays may be null there.

        Raises SchemaError naming what is missing.
        """
        try:
            columns = [Column.from_tidb(c) for c in info.get("cols") or ()]
            return cls(
                id=int(info["id"]),
                schema_id=schema_id,
                schema_name=schema_name,
                name=name_of(info["name"]),
                columns=tuple(sorted(columns, key=lambda c: c.offset)),
                indexes=tuple(Index.from_tidb(i) for i in info.get("index_info") or ()),
                charset=info.get("charset") or "",
                collate=info.get("collate") or "",
                pk_is_handle=bool(info.get("pk_is_handle")),
                is_common_handle=bool(info.get("is_common_handle")),
                common_handle_version=int(info.get("common_handle_version") or 0),
                state=int(info.get("state") or 0),
                comment=info.get("comment") or "",
                auto_random_bits=int(info.get("auto_random_bits") or 0),
                temp_table_type=int(info.get("temp_table_type") or 0),
                is_view=info.get("view") is not None,
                is_sequence=info.get("sequence") is not None,
                partition=info.get("partition"),
                view=info.get("view"),
                sequence=info.get("sequence"),
                foreign_keys=tuple(info.get("fk_info") or ()),
                auto_increment=int(info.get("auto_inc_id") or 0),
            )
        except (KeyError, TypeError, ValueError) as error:
            where = f"table {schema_name}.{name_of(info.get('name'))}"
            raise SchemaError(
                f"{where}: {error}"
                if isinstance(error, SchemaError)
                else f"{where}: its document lacks or garbles {error}"
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object without defaults; `from_json` makes an equal Table of it."""
        document = record_to_json(self)
        document["columns"] = [record_to_json(c) for c in self.columns]
        document["indexes"] = [record_to_json(i) for i in self.indexes]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Table":
        """Parse what `to_json` wrote.

        Unknown keys are errors: a newer writer than reader must not lose anything.
        """
        try:
            values = dict(document)
            values["columns"], values["indexes"] = columns_and_indexes(
                document.get("columns", []), document.get("indexes", [])
            )
            values["foreign_keys"] = tuple(document.get("foreign_keys", ()))
            values["history"] = tuple(document.get("history", ()))
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"table document {document.get('name')!r}: {error}") from error

    @property
    def full_name(self) -> str:
        """Return `schema.table`, for messages."""
        return full_name(self.schema_name, self.name)

    @property
    def is_base_table(self) -> bool:
        """Return whether the table keeps rows: no view, no sequence, not temporary."""
        return not (self.is_view or self.is_sequence or self.temp_table_type)

    @property
    def is_partitioned(self) -> bool:
        """Return whether the rows lie in partitions, each of which counts row ids for itself."""
        return self.partition is not None and bool(self.partition.get("enable", True))

    @property
    def handle_kind(self) -> str:
        """Return the kind of row handle.

        `"int"`: the primary key is the handle; `"common"`: clustered on other columns; `"heap"`:
        hidden row id.
        """
        return "int" if self.pk_is_handle else "common" if self.is_common_handle else "heap"

    @property
    def handle_column(self) -> Column | None:
        """Return the column that is the integer handle; None for other kinds of handle."""
        if not self.pk_is_handle:
            return None
        return cast(Columns, self.columns).first_of_key

    @property
    def primary_index(self) -> Index | None:
        """Return the primary key's index; tables with an integer key for a handle have none."""
        return next((i for i in self.indexes if i.primary), None)

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Return names of the primary key's columns in key order, () without a primary key.

        A prefix key is one as well: a value that is unique in its prefix is unique as a whole.
        """
        index = self.primary_index
        if index is None and self.handle_column is not None:
            return (self.handle_column.name,)
        return (
            tuple(name for name, _, _ in index.columns)
            if index and index.state == STATE_PUBLIC
            else ()
        )

    @property
    def source_key(self) -> tuple[str, ...]:
        """Return `primary_key` as the upstream has it: without `source_column`."""
        source = self.source_column
        if source is None:
            return self.primary_key
        return tuple(name for name in self.primary_key if name != source.name)

    @property
    def stored_columns(self) -> tuple[Column, ...]:
        """Return the public columns that rows hold, in table order: not virtual generated ones."""
        return cast(Columns, self.columns).stored

    @property
    def writable_columns(self) -> tuple[Column, ...]:
        """Return the public columns that statements may set, in table order: not generated ones."""
        return cast(Columns, self.columns).writable

    @property
    def deletion_mark(self) -> Column | None:
        """Return the column, added by a rule, that says when a row was deleted; None without."""
        return cast(Columns, self.columns).deletion_mark

    @property
    def source_column(self) -> Column | None:
        """Return the column, added by a route, that names the row's upstream table; None without.

        Its name is the last of each unique key. Rows hold no datum of it: its `origin_default` is
        the value in all of them.
        """
        return cast(Columns, self.columns).source_column

    @property
    def gone_column(self) -> str:
        """Return the column downstream that is NULL only in rows that are upstream; "" for none.

        Rows that are gone stay there by a rule, with the time.
        """
        mark = self.deletion_mark
        return mark.name if mark is not None else self.history[1] if self.history else ""

    @property
    def landed_masks(self) -> dict[int, str]:
        """Return how landing has masked columns, by id, of those that it has masked."""
        return cast(Columns, self.columns).landed_masks

    @property
    def form(self) -> tuple[Any, ...] | None:
        """Return a key that is equal for living tables with equal rows; None where that is costly.

        The tables live at the same time, and are alike in all that their rows depend on.
        """
        if self.partition is not None:
            return None
        flags = self.pk_is_handle, self.is_common_handle, self.common_handle_version, self.state
        return id(self.columns), id(self.indexes), *flags, self.charset, self.collate

    def unique_keys(self) -> list[tuple[str, ...]]:
        """Return the column names of the primary key, then of the unique keys.

        Unique keys with all columns NOT NULL come before the others. Only public indexes over
        stored columns count, so every key can be computed from a row.
        """
        stored = {c.name: c for c in self.stored_columns}
        keys = [self.primary_key] if self.primary_key else []
        weak: list[tuple[str, ...]] = []
        for index in self.indexes:
            names = tuple(name for name, _, _ in index.columns)
            if index.primary or not index.unique or index.state != STATE_PUBLIC:
                continue
            if any(name not in stored for name in names):
                continue
            (keys if all(stored[name].not_null for name in names) else weak).append(names)
        return keys + weak


def record_to_json(record: Schema | Column | Index | Table) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for spec in fields(record):
        value = getattr(record, spec.name)
        if value == spec.default and type(value) is type(spec.default):
            continue
        if isinstance(value, bytes):
            value = {"base64": base64.b64encode(value).decode()}
        elif isinstance(value, tuple):
            value = [list(v) if isinstance(v, tuple) else v for v in value]
        document[spec.name] = value
    return document
