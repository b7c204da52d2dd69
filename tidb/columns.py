"""Columns and indexes of a table, as TiDB's DDL jobs describe them."""

import base64
import marshal
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sluice.errors import SluiceError
from sluice.tidb import column_types

STATE_DELETE_ONLY = 1
STATE_WRITE_ONLY = 2
STATE_PUBLIC = 5

WHOLE_COLUMN = -1


class SchemaError(SluiceError, ValueError):
    """A schema document that can't be understood.

    Names the table or column and the part that is wrong.
    """

    hint = "report the DDL job: Sluice doesn't understand its definition of the table"


def name_of(value: Any) -> str:
    """Return TiDB's case-insensitive name of `{"O": original, "L": lower}` or a plain string."""
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
    BIT). `upstream_name` is set in tables as rules shape them, for a column that has another name
    downstream, or none there (then it isn't public). `mask` is set there, too: how its values are
    masked, as `sluice.etl.changes.masks` writes it; and `computed`, of a generated column that a
    rule adds downstream alone: SQL by which the upstream computes its value. `marks_deletes`: a
    rule adds it to hold when the row was deleted, NULL while the row is upstream. `names_source`: a
    route adds it to a merged table, to hold the upstream's table of each row. `landed_mask` is set
    in tables of window records whose values landing has masked, defaults among them: how, as `mask`
    but for the key, of which it has the fingerprint.
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
    upstream_name: str = ""
    mask: str = ""
    computed: str = ""
    marks_deletes: bool = False
    names_source: bool = False
    landed_mask: str = ""

    @classmethod
    def from_tidb(cls, info: Mapping[str, Any]) -> "Column":
        """Parse TiDB's ColumnInfo JSON."""
        try:
            tp = info["type"]
            return cls(
                id=int(info["id"]),
                name=name_of(info["name"]),
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
                f"column {name_of(info.get('name'))!r}: its document lacks or garbles {error}"
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
    def source_name(self) -> str:
        """Return the name that the upstream has for it, whatever rules make of that."""
        return self.upstream_name or self.name

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
        """Return whether it is generated when read; rows don't hold it (deletes may)."""
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
        """Return fraction digits of a time type, 0 to 6."""
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
                name=name_of(info["idx_name"]),
                columns=tuple(
                    (name_of(c["name"]), int(c["offset"]), int(c.get("length", WHOLE_COLUMN)))
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
                f"index {name_of(info.get('idx_name'))!r}: its document lacks or garbles {error}"
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
    def deletion_mark(self) -> Column | None:
        """See Table.deletion_mark."""
        return next((c for c in self if c.marks_deletes), None)

    @cached_property
    def source_column(self) -> Column | None:
        """See Table.source_column."""
        return next((c for c in self if c.names_source), None)

    @cached_property
    def landed_masks(self) -> dict[int, str]:
        """Return how landing has masked columns, by id, of those that it has masked."""
        return {c.id: c.landed_mask for c in self if c.landed_mask}

    @cached_property
    def first_of_key(self) -> Column | None:
        """Return the first of those that are of the primary key."""
        return next((c for c in self if c.flag & column_types.FLAG_PRIMARY_KEY), None)


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


def columns_and_indexes(columns: list[Any], indexes: list[Any]) -> _Form:
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
