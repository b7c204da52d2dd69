"""Determine which partition of a table a row lies in, by TiDB's rules.

    RANGE         the first partition with a bound above the expression's value; NULL lies in the
                  first
    RANGE COLUMNS the same with tuples, compared column by column; NULL is below everything
    LIST          the partition that names the value, NULL included, else the DEFAULT one
    HASH          |value mod n|, NULL counts as 0
    KEY           CRC-32 over the columns' texts, as their collation sorts them, mod n; NULL is a
                  zero byte

The definition is TiDB's PartitionInfo (`Table.partition`). Text compares under the column's
collation as far as that is known here (binary collations, and the others for ASCII); everything
that isn't certain is a PartitionError.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from sluice.tidb.folded import folded
from sluice.tidb.partition_bounds import string_value
from sluice.tidb.partition_expression import PartitionError, PartitionMoment, evaluate
from sluice.tidb.schema import Column, Table

__all__ = ["PartitionError", "collation_key", "partition_ids", "partition_of", "physical_ids"]

RANGE, HASH, LIST, KEY = 1, 2, 3, 4


def partition_ids(table: Table) -> dict[int, str]:
    """Return the names of a table's partitions by TiDB's physical table id."""
    definitions = (table.partition or {}).get("definitions") or ()
    return {
        int(d["id"]): d["name"]["O"] if isinstance(d["name"], Mapping) else str(d["name"])
        for d in definitions
    }


def physical_ids(table: Table) -> set[int]:
    """Return all ids under which TiKV may have rows of a table.

    Those of a reorganization that runs are included.
    """
    info = table.partition or {}
    kinds = ("definitions", "adding_definitions", "dropping_definitions")
    ids = {int(definition["id"]) for kind in kinds for definition in info.get(kind) or ()}
    return ids | {table.id, int(info.get("new_table_id") or 0)} - {0}


def partition_of(table: Table, row: Mapping[str, Any]) -> int | None:
    """Return the id of the partition that takes a row; None if there is none for it.

    The row has values by column name, as `sluice.tidb.rows` decodes them. Raises PartitionError,
    naming the table, if the partition can't be determined.
    """
    info = table.partition or {}
    definitions = info.get("definitions") or ()
    try:
        number = _number(info, definitions, {folded(c.name): c for c in table.columns}, row)
    except (PartitionError, ValueError, TypeError, KeyError) as error:
        raise PartitionError(f"table {table.full_name}: {error}") from error
    return None if number is None else int(definitions[number]["id"])


def _number(
    info: Mapping[str, Any],
    definitions: Sequence[Mapping[str, Any]],
    columns: Mapping[str, Column],
    row: Mapping[str, Any],
) -> int | None:
    kind = int(info.get("type") or 0)
    names = [
        folded(str(c["L"] if isinstance(c, Mapping) else c)) for c in info.get("columns") or ()
    ]
    if kind == KEY:
        return _by_key([columns[name] for name in names], row, len(definitions))
    if names:
        keys = [_sort_key(columns[name], row[columns[name].name]) for name in names]
        bounds = [columns[name] for name in names]
        return (
            _by_range_columns(definitions, bounds, keys)
            if kind == RANGE
            else _by_list_columns(definitions, bounds, keys)
        )
    value = evaluate(str(info.get("expr") or ""), columns, row)
    if kind == HASH:
        return _by_hash(value, len(definitions))
    if kind == RANGE:
        return _by_range(definitions, value)
    if kind == LIST:
        return _by_list(definitions, value)
    raise PartitionError(f"a partition type {kind} that Sluice doesn't know")


def _by_range(definitions: Sequence[Mapping[str, Any]], value: int | None) -> int | None:
    for number, definition in enumerate(definitions):
        bound = str(definition["less_than"][0])
        if value is None or _is_maximum(bound) or value < _constant(bound):
            return number
    return None


def _by_list(definitions: Sequence[Mapping[str, Any]], value: int | None) -> int | None:
    for number, definition in enumerate(definitions):
        for listed in definition.get("in_values") or ():
            text = str(listed[0])
            if text.upper() != "DEFAULT" and (
                value is None if text.upper() == "NULL" else value == _constant(text)
            ):
                return number
    return _default(definitions)


def _by_hash(value: int | None, count: int) -> int:
    signed = ((value or 0) + 2**63) % 2**64 - 2**63  # TiDB takes an unsigned value for a signed one
    return abs(signed) % count


def _by_range_columns(
    definitions: Sequence[Mapping[str, Any]], columns: Sequence[Column], keys: Sequence[Any]
) -> int | None:
    for number, definition in enumerate(definitions):
        for column, key, bound in zip(columns, keys, definition["less_than"], strict=True):
            limit = None if _is_maximum(str(bound)) else _bound_key(column, str(bound))
            if limit is None or key is None or key < limit:
                return number
            if key != limit:
                break
    return None


def _by_list_columns(
    definitions: Sequence[Mapping[str, Any]], columns: Sequence[Column], keys: Sequence[Any]
) -> int | None:
    for number, definition in enumerate(definitions):
        for listed in definition.get("in_values") or ():
            if len(listed) != len(columns) or str(listed[0]).upper() == "DEFAULT":
                continue
            if all(
                _bound_key(column, str(text)) == key
                for column, text, key in zip(columns, listed, keys, strict=True)
            ):
                return number
    return _default(definitions)


def _by_key(columns: Sequence[Column], row: Mapping[str, Any], count: int) -> int:
    check = 0
    for column in columns:
        check = zlib.crc32(_hash_key(column, row[column.name]), check)
    return check % count


def _default(definitions: Sequence[Mapping[str, Any]]) -> int | None:
    for number, definition in enumerate(definitions):
        if any(
            str(text).upper() == "DEFAULT"
            for listed in definition.get("in_values") or ()
            for text in listed
        ):
            return number
    return None


def _is_maximum(bound: str) -> bool:
    return bound.upper().strip("()") == "MAXVALUE"


def _constant(text: str) -> int:
    value = evaluate(text, {}, {})
    if value is None:
        raise PartitionError(f"the bound {text} is no number")
    return value


def _bound_key(column: Column, text: str) -> Any:
    """Return the `_sort_key` of a bound as TiDB writes it; None for NULL."""
    text = text.strip()
    if text.upper() == "NULL":
        return None
    value = string_value(text)
    if value is not None:
        return _sort_key(column, value.decode("utf-8", "surrogateescape"))
    if column.kind in ("int", "year"):
        return _constant(text)
    raise PartitionError(f"the bound {text} of column {column.name}, which Sluice can't compare")


def _sort_key(column: Column, value: Any) -> Any:
    """Return the key that orders a value under its column's type and collation; None for NULL."""
    if value is None:
        return None
    kind = column.kind
    if kind in ("int", "year"):
        return int(value)
    if kind in ("date", "datetime", "time"):
        return PartitionMoment(str(value)).key()
    if kind == "binary":
        return bytes(value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value)
    if kind == "text":
        return collation_key(column.collate, _text(value))
    raise PartitionError(f"column {column.name} of type {kind}, by which TiDB doesn't partition")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "surrogateescape")


def collation_key(collation: str, text: str) -> bytes:
    """Return the text as a key of the collation.

    Raises PartitionError where only TiDB knows how it compares.
    """
    plain = text.encode("utf-8", "surrogateescape")
    if collation.endswith("_bin"):
        return plain if "_0900_" in collation or "_nopad_" in collation else plain.rstrip(b" ")
    if not plain.isascii() or any(byte < 32 or byte == 127 for byte in plain):
        raise PartitionError(
            f"{text[:100]!r} under the collation {collation}: only TiDB knows how that compares"
        )
    if not collation.endswith("general_ci") and not all(
        chr(byte).isalnum() or byte == 32 for byte in plain
    ):
        raise PartitionError(
            f"{text[:100]!r} under the collation {collation}: only TiDB knows how that compares"
        )
    upper = plain.upper()
    return upper if "_0900_" in collation else upper.rstrip(b" ")


def _hash_key(column: Column, value: Any) -> bytes:
    if value is None:
        return b"\0"
    if column.kind in ("int", "year"):
        return str(int(value)).encode()
    if column.kind in ("date", "datetime", "time", "decimal"):
        return str(value).encode()
    if column.kind == "binary":
        return bytes(value)
    if column.kind == "text" and column.collate.endswith("_bin"):
        return collation_key(column.collate, _text(value))
    if column.kind == "text" and column.collate.endswith("general_ci"):
        return b"".join(bytes((0, byte)) for byte in collation_key(column.collate, _text(value)))
    raise PartitionError(
        f"column {column.name} ({column.collate or column.kind}): only TiDB knows its hash"
    )
