"""Make Avro schemas of a table's columns as TiCDC does, and their values.

A nullable column is a union with null; `connect.parameters` have TiDB's type. As TiCDC, BIGINT
UNSIGNED is a long that wraps, and a field's default is that of the column. Lossless:

- BIGINT UNSIGNED is text;
- null comes first in a union, for some readers replace NULL by a default;
- a NOT NULL column has the default that TiDB gives to rows from before the column;
- `connect.parameters` name the zone of TIMESTAMPs, and a column whose name Avro doesn't allow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from sluice.etl.changes.messages.avro_binary import (
    NULL_FIRST,
    NULL_LAST,
    decimal_bytes,
    decimal_number,
    doubles,
    long_text,
    longs,
    number_bytes,
    optional,
    sized,
)
from sluice.etl.changes.messages.debezium_types import element_texts
from sluice.etl.changes.messages.message import Images, ungiven
from sluice.tidb import column_types as types
from sluice.tidb.codec.column_value import missing_value
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.schema import Column, Table

NULL, PRESENT = long_text(0), long_text(1)
"""Branches of a union that begins with null."""
NAMESPACE = "default"
"""The changefeed's namespace, as TiCDC has it."""

_NO_NAME = re.compile(r"[^A-Za-z0-9_]")
_TIDB_TYPES = {
    "float": "FLOAT",
    "double": "DOUBLE",
    "decimal": "DECIMAL",
    "bit": "BIT",
    "text": "TEXT",
    "binary": "BLOB",
    "enum": "ENUM",
    "set": "SET",
    "json": "JSON",
    "date": "DATE",
    "datetime": "DATETIME",
    "timestamp": "TIMESTAMP",
    "time": "TIME",
    "year": "YEAR",
    "vector": "TiDBVECTORFloat32",
}
_AVRO_TYPES = {
    "year": "int",
    "float": "float",
    "double": "double",
    "bit": "bytes",
    "binary": "bytes",
    "decimal": "bytes",
}
"""Avro's type of each kind; whole numbers see `_number_type`, all others are text."""
_BIT_LENGTH, _DECIMAL_PRECISION = 1, 10
"""What TiDB leaves open."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column as a field of a record."""

    name: str
    """Its name as Avro allows it, unlike that of any other field."""
    column: Column
    lossless: bool
    time_zone: str

    def schema(self) -> dict[str, Any]:
        """Return the field's schema."""
        found: dict[str, Any] = {"name": self.name, "type": self._type()}
        default = self._default()
        if self.column.not_null:
            return found if default is None else found | {"default": default}
        union = ["null", found["type"]]
        return found | {"type": union if default is None else union[::-1], "default": default}

    def values(self, image: Images) -> pa.LargeBinaryArray:
        """Return the values of an image's column."""
        array, column = image[self.column.name], self.column
        if not column.not_null:
            return optional(
                self._binary(array), NULL_FIRST if self._default() is None else NULL_LAST
            )
        if array.null_count:
            raise ungiven(column)
        return self._binary(array)

    def _binary(self, array: pa.Array) -> pa.LargeBinaryArray:
        column = self.column
        match column.kind:
            case "int" if self._type_name == "string":
                return sized(array.cast(pa.large_string()))
            case "int" | "year":
                return longs(array)
            case "float" | "double":
                return doubles(array)
            case "decimal":
                return sized(decimal_bytes(array, precision_of(column), scale_of(column)))
            case "bit":
                return sized(number_bytes(array))
            case "enum" | "set":
                return sized(element_texts(column, array))
            case _:
                return sized(array)

    @property
    def _type_name(self) -> str:
        column = self.column
        if column.kind != "int":
            return _AVRO_TYPES.get(column.kind, "string")
        if column.tp == types.BIGINT:
            return "string" if column.unsigned and self.lossless else "long"
        return "long" if column.unsigned and column.tp == types.INT else "int"

    def _type(self) -> dict[str, Any]:
        column, kind = self.column, self.column.kind
        if kind == "int":
            name = ("BIGINT" if column.tp == types.BIGINT else "INT") + (
                " UNSIGNED" if column.unsigned else ""
            )
        else:
            name = _TIDB_TYPES.get(kind, "TEXT")
        parameters = {"tidb_type": name}
        found: dict[str, Any] = {"type": self._type_name, "connect.parameters": parameters}
        if kind == "bit":
            parameters["length"] = str(column.flen if column.flen > 0 else _BIT_LENGTH)
        elif kind in ("enum", "set"):
            parameters["allowed"] = ",".join(e.replace(",", "\\,") for e in column.elems)
        elif kind == "decimal":
            found |= {
                "logicalType": "decimal",
                "precision": precision_of(column),
                "scale": scale_of(column),
            }
        if self.lossless and kind == "timestamp":
            parameters["time_zone"] = self.time_zone
        if self.lossless and self.name != column.name:
            parameters["column"] = column.name
        return found

    def _default(self) -> Any:
        """Return the default as a schema has it; None for none."""
        column = self.column
        if self.lossless:
            if column.origin_default is None or not column.not_null:
                return None
        else:
            if column.default is None or column.default_is_expr or column.kind == "decimal":
                return None
            column = replace(column, origin_default=column.default)
        if column.kind == "timestamp" and self.time_zone != "UTC":
            return None  # TiDB keeps it in UTC
        try:
            return self._as_json(missing_value(column))
        except (CodecError, UnicodeDecodeError):  # such as CURRENT_TIMESTAMP, which is no value
            return None

    def _as_json(self, value: Any) -> Any:
        column = self.column
        match column.kind:
            case "decimal":
                return decimal_number(value, scale_of(column)).decode("latin-1")
            case "bit":
                return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big").decode(
                    "latin-1"
                )
            case "binary":
                return value.decode("latin-1")
            case "int" if self._type_name == "string":
                return str(value)
        return value.decode() if isinstance(value, bytes) else value


def fields_of(columns: Sequence[Column], *, lossless: bool, time_zone: str) -> list[Field]:
    """Return the columns as fields; two whose names Avro takes for one get numbers."""
    return [
        Field(name, column, lossless, time_zone)
        for name, column in zip(field_names(columns), columns, strict=True)
    ]


def record_schema(table: Table, fields: Sequence[dict[str, Any]], name: str = "") -> dict[str, Any]:
    """Return a record of the table, by default with its name."""
    return {
        "type": "record",
        "name": name or avro_name(table.name),
        "namespace": f"{NAMESPACE}.{avro_name(table.schema_name)}",
        "fields": list(fields),
    }


def avro_name(name: str) -> str:
    """Return a name with `_` for all that Avro doesn't allow."""
    found = _NO_NAME.sub("_", name)
    return "_" + found if found[:1].isdigit() else found


def field_names(columns: Sequence[Column]) -> Iterator[str]:
    """Yield names that Avro allows; two that it takes for one get numbers."""
    given: set[str] = set()
    for column in columns:
        name, number = avro_name(column.name), 2
        while name in given:
            name, number = f"{avro_name(column.name)}_{number}", number + 1
        given.add(name)
        yield name


def precision_of(column: Column) -> int:
    """Return the digits of a DECIMAL."""
    return column.flen if column.flen > 0 else _DECIMAL_PRECISION


def scale_of(column: Column) -> int:
    """Return the fraction digits of a DECIMAL."""
    return max(0, column.decimal)
