"""Schemas, tables, columns and indexes as TiDB's DDL jobs describe them.

Built from the JSON of DBInfo and TableInfo, and written back as a small JSON document of our own
that is part of every window record, so that rows can be decoded long after the upstream has
changed. Column ids, not names or offsets, are what rows carry.
"""

import base64
import json
import marshal
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, cast

from sluice.errors import SluiceError
from sluice.tidb import column_types
from sluice.tidb.table_name import full_name

STATE_DELETE_ONLY = 1
STATE_WRITE_ONLY = 2
STATE_PUBLIC = 5

WHOLE_COLUMN = -1
MAX_USER_TABLE_ID = 0xFFFFFFFFFFFF - 1000
"""Tables with greater ids are TiDB's own (its DDL queue); their changes are no user's data."""


class SchemaError(SluiceError, ValueError):
    """A schema document that can't be understood.

    Names the table or column and the part that is wrong.
    """

    hint = "report the DDL job: Sluice doesn't understand its definition of the table"


def parse_object(data: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object as TiKV has it. `what`: for messages. Raises SchemaError."""
    try:
        found = json.loads(data)
    except ValueError as error:
        raise SchemaError(f"{what} in TiKV is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise SchemaError(f"{what} in TiKV is a {type(found).__name__}, not an object")
    return found


def _name(value: Any) -> str:
    """TiDB's case-insensitive name: `{"O": original, "L": lower}` or a plain string."""
    if isinstance(value, Mapping):
        return str(value.get("O", ""))
    return str(value or "")


def _bytes_or_text(plain: Any, bits: str | None) -> bytes | str | None:
    """Return a default value: `*_bit` is base64 of raw bytes and wins.

    Other JSON scalars become text.
    """
    if bits is not None:
        return base64.b64decode(bits)
    if plain is None or isinstance(plain, str):
        return plain
    return str(int(plain)) if isinstance(plain, bool) else str(plain)


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
                _name(info["db_name"]),
                info.get("charset") or "",
                info.get("collate") or "",
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"a DBInfo document lacks or garbles {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `from_json` makes an equal Schema of it."""
        return _to_json(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Schema":
        """Parse what `to_json` wrote."""
        return cls(**document)


_CLOCK_KINDS = ("date", "time", "datetime", "timestamp", "year")
_CLOCK = re.compile(
    r"(CURRENT_(?:DATE|TIME(?:STAMP)?)|CUR(?:DATE|TIME)|LOCALTIME(?:STAMP)?|NOW|SYSDATE|UTC_(?:DATE|TIME(?:STAMP)?))"
    r"(?:\(\d?\))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column (ColumnInfo).

    `flen` and `decimal` are -1 when TiDB left them open; `decimal` is the number of fraction digits
    of times. `origin_default` is the value of rows written before the column existed (bytes for
    BIT).
    """

    id: int
    name: str
    offset: int
    tp: int
    flag: int = 0
    flen: int = -1
    decimal: int = -1
    charset: str = ""
    collate: str = ""
    elems: tuple[str, ...] = ()
    state: int = STATE_PUBLIC
    hidden: bool = False
    generated: str = ""
    generated_stored: bool = False
    origin_default: bytes | str | None = None
    default: bytes | str | None = None
    default_is_expr: bool = False
    comment: str = ""
    version: int = 0
    changing: bool = False

    @classmethod
    def from_tidb(cls, info: Mapping[str, Any]) -> "Column":
        """Parse TiDB's ColumnInfo JSON."""
        try:
            tp = info["type"]
            return cls(
                id=int(info["id"]),
                name=_name(info["name"]),
                offset=int(info["offset"]),
                tp=int(tp["Tp"]),
                flag=int(tp.get("Flag") or 0),
                flen=int(tp.get("Flen", -1)),
                decimal=int(tp.get("Decimal", -1)),
                charset=tp.get("Charset") or "",
                collate=tp.get("Collate") or "",
                elems=tuple(tp.get("Elems") or ()),
                state=int(info.get("state") or 0),
                hidden=bool(info.get("hidden")),
                generated=info.get("generated_expr_string") or "",
                generated_stored=bool(info.get("generated_stored")),
                origin_default=_bytes_or_text(
                    info.get("origin_default"), info.get("origin_default_bit")
                ),
                default=_bytes_or_text(info.get("default"), info.get("default_bit")),
                default_is_expr=bool(info.get("default_is_expr")),
                comment=info.get("comment") or "",
                version=int(info.get("version") or 0),
                changing=info.get("change_state_info") is not None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(
                f"column {_name(info.get('name'))!r}: its document lacks or garbles {error}"
            ) from error

    @property
    def kind(self) -> str:
        """Return the kind of its values.

        It is int, year, bit, float, double, decimal, text, binary, date, datetime, timestamp, time,
        enum, set, json, vector, null, or "" for a type number TiDB didn't have when this was
        written.
        """
        kind = column_types.KINDS.get(self.tp, "")
        return "binary" if kind == "text" and self.charset == "binary" else kind

    @property
    def unsigned(self) -> bool:
        return bool(self.flag & column_types.FLAG_UNSIGNED)

    @property
    def not_null(self) -> bool:
        return bool(self.flag & column_types.FLAG_NOT_NULL)

    @property
    def public(self) -> bool:
        return self.state == STATE_PUBLIC

    @property
    def virtual(self) -> bool:
        """Generated when read; rows don't hold it (deletes may)."""
        return bool(self.generated) and not self.generated_stored

    @property
    def default_expression(self) -> str:
        """Return the default as SQL where it is a function, else "".

        CURRENT_TIMESTAMP, which every server has, gives "", too. TiDB marks functions of the clock
        as values.
        """
        if isinstance(self.default, bytes):
            return self.default.decode() if self.default_is_expr else ""
        text = self.default or ""
        clock = _CLOCK.fullmatch(text) if self.kind in _CLOCK_KINDS else None
        if clock is None:
            return text if self.default_is_expr else ""
        is_moment = (
            self.kind in ("datetime", "timestamp") and clock[1].upper() == "CURRENT_TIMESTAMP"
        )
        return "" if is_moment else text

    @property
    def has_blank_ends(self) -> bool:
        """Return whether an ENUM or SET element ends with a blank, which TiDB kept until 2020.

        Servers cut it off in a definition, unless the column's character set is binary.
        """
        is_text = self.tp in (column_types.ENUM, column_types.SET) and self.charset != "binary"
        return is_text and any(element.endswith(" ") for element in self.elems)

    @property
    def fsp(self) -> int:
        """Fraction digits of a time type, 0 to 6."""
        return self.decimal if 0 < self.decimal <= 6 else 0


@dataclass(frozen=True, slots=True)
class Index:
    """An index (IndexInfo).

    `columns` are (column name, offset into the table's columns, prefix length or -1).
    """

    id: int
    name: str
    columns: tuple[tuple[str, int, int], ...]
    unique: bool = False
    primary: bool = False
    state: int = STATE_PUBLIC
    invisible: bool = False
    is_global: bool = False
    type: int = 1
    comment: str = ""

    @classmethod
    def from_tidb(cls, info: Mapping[str, Any]) -> "Index":
        """Parse TiDB's IndexInfo JSON."""
        try:
            return cls(
                id=int(info["id"]),
                name=_name(info["idx_name"]),
                columns=tuple(
                    (_name(c["name"]), int(c["offset"]), int(c.get("length", WHOLE_COLUMN)))
                    for c in info.get("idx_cols") or ()
                ),
                unique=bool(info.get("is_unique")),
                primary=bool(info.get("is_primary")),
                state=int(info.get("state") or 0),
                invisible=bool(info.get("is_invisible")),
                is_global=bool(info.get("is_global")),
                type=int(info.get("index_type") or 1),
                comment=info.get("comment") or "",
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(
                f"index {_name(info.get('idx_name'))!r}: its document lacks or garbles {error}"
            ) from error


class Columns(tuple[Column, ...]):
    """All columns of a table, with what follows from them alone, computed once.

    Tables with equal columns share the object.
    """

    @cached_property
    def stored(self) -> tuple[Column, ...]:
        """See Table.stored_columns."""
        return tuple(c for c in self if c.public and not c.virtual)

    @cached_property
    def writable(self) -> tuple[Column, ...]:
        """See Table.writable_columns."""
        return tuple(c for c in self if c.public and not c.generated)

    @cached_property
    def first_of_key(self) -> Column | None:
        """Return the first of those that are of the primary key."""
        return next((c for c in self if c.flag & column_types.FLAG_PRIMARY_KEY), None)


@dataclass(frozen=True, slots=True)
class Table:
    """A table, view or sequence (TableInfo) with the name of its schema.

    `columns` are in offset order and hold every column, also those that are being added, dropped or
    changed. `partition`, `view`, `sequence` and `foreign_keys` are TiDB's PartitionInfo, ViewInfo,
    SequenceInfo and FKInfos as they came; `auto_increment` is the AUTO_INCREMENT a statement set, 0
    for none.
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
                name=_name(info["name"]),
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
            where = f"table {schema_name}.{_name(info.get('name'))}"
            raise SchemaError(
                f"{where}: {error}"
                if isinstance(error, SchemaError)
                else f"{where}: its document lacks or garbles {error}"
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object without defaults; `from_json` makes an equal Table of it."""
        document = _to_json(self)
        document["columns"] = [_to_json(c) for c in self.columns]
        document["indexes"] = [_to_json(i) for i in self.indexes]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Table":
        """Parse what `to_json` wrote.

        Unknown keys are errors: a newer writer than reader must not lose anything.
        """
        try:
            values = dict(document)
            values["columns"], values["indexes"] = _form(
                document.get("columns", []), document.get("indexes", [])
            )
            values["foreign_keys"] = tuple(document.get("foreign_keys", ()))
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"table document {document.get('name')!r}: {error}") from error

    @property
    def full_name(self) -> str:
        """`schema.table`, for messages."""
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
        """Names of the primary key's columns in key order, () without a primary key.

        A prefix key is one as well: a value that is unique in its prefix is unique as a whole.
        """
        if self.handle_column is not None:
            return (self.handle_column.name,)
        index = self.primary_index
        return (
            tuple(name for name, _, _ in index.columns)
            if index and index.state == STATE_PUBLIC
            else ()
        )

    @property
    def stored_columns(self) -> tuple[Column, ...]:
        """Public columns that rows hold: everything but virtual generated ones, in table order."""
        return cast(Columns, self.columns).stored

    @property
    def writable_columns(self) -> tuple[Column, ...]:
        """Public columns a statement may set: no generated ones, in table order."""
        return cast(Columns, self.columns).writable

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


def _to_json(record: Schema | Column | Index | Table) -> dict[str, Any]:
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


def _plain_or_bytes(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, Mapping) else value


def _column_from_json(document: Mapping[str, Any]) -> Column:
    values = dict(document)
    if "elems" in values:
        values["elems"] = tuple(values["elems"])
    for key in ("origin_default", "default"):
        if key in values:
            values[key] = _plain_or_bytes(values[key])
    return Column(**values)


def _index_from_json(document: Mapping[str, Any]) -> Index:
    values = dict(document)
    values["columns"] = tuple(
        (name, offset, length) for name, offset, length in document["columns"]
    )
    return Index(**values)


_Form = tuple[Columns, tuple[Index, ...]]
_MAX_CACHED_COLUMNS = 100_000
_forms: dict[bytes, _Form] = {}
_columns_kept = 0


def _form(columns: list[Any], indexes: list[Any]) -> _Form:
    """Return columns and indexes of their documents: the same objects for the same documents.

    There may be thousands of the same, as each shard or tenant has its tables.
    """
    global _columns_kept
    try:
        key = marshal.dumps((columns, indexes), 2)  # what equals another in this is equal to it
    except ValueError:  # no JSON
        key = b""
    found = _forms.get(key)
    if found is not None:
        return found
    made = Columns(map(_column_from_json, columns)), tuple(map(_index_from_json, indexes))
    _columns_kept += len(columns)
    if _columns_kept > _MAX_CACHED_COLUMNS:
        _forms.clear()
        _columns_kept = len(columns)
    if key:
        _forms[key] = made
    return made
