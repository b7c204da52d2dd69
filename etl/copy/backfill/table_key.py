"""The key by whose ranges a table is copied again.

It must mean the same rows on both sides. TiDB's hidden row id doesn't exist downstream: it is the
key by which rows are found there, whether TiDB keeps the rows in its order or not.
"""

from __future__ import annotations

import json
import re

from sluice.etl.changes.formats.key_ranges import SPLITTABLE_KINDS, KeyColumn
from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.copy.errors import BackfillError
from sluice.tidb.schema import WHOLE_COLUMN, Table

_NUMBER_PATTERNS = {"int": r"-?\d+", "year": r"\d{4}", "decimal": r"-?\d+(\.\d+)?"}


def range_key(table: Table) -> list[KeyColumn]:
    """Return the columns of the key by which rows are found downstream, in its order.

    None if ranges can't be cut by it.
    """
    columns = lookup_key_columns(table)
    names = {
        name
        for index in table.indexes
        for name, _, length in index.columns
        if length != WHOLE_COLUMN
    }
    if any(
        column.kind not in SPLITTABLE_KINDS or column.generated or column.name in names
        for column in columns
    ):
        return []
    return [KeyColumn.from_column(column) for column in columns]


def parse_key(option: str, text: str, key: list[KeyColumn]) -> list[str] | None:
    """Parse a key as people write it into literals; None for "". Raises BackfillError.

    It is `5`, `2026-11-01,17` or a JSON array, `["a,b", 17]`. Bytes are written 0x0aff.
    """
    if not text:
        return None
    try:
        values = (
            [str(value) for value in json.loads(text)] if text.startswith("[") else text.split(",")
        )
    except (ValueError, TypeError):
        raise BackfillError(f"{option} {text}: not a JSON array of values") from None
    if len(values) != len(key):
        raise BackfillError(
            f"{option} {text}: {len(values)} values, and the key is"
            f" ({', '.join(column.name for column in key)})"
        )
    return [_literal(option, column, value) for column, value in zip(key, values)]


def _literal(option: str, column: KeyColumn, value: str) -> str:
    pattern = _NUMBER_PATTERNS.get(column.kind)
    if pattern is not None and not re.fullmatch(pattern, value.strip()):
        raise BackfillError(
            f"{option}: invalid value {value!r} for the column {column.name} ({column.kind})"
        )
    if column.kind == "binary":
        if not re.fullmatch(r"0x([0-9a-fA-F]{2})*", value):
            raise BackfillError(
                f"{option}: {value!r}: {column.name} holds bytes, which are written 0x0aff"
            )
        return column.literal(bytes.fromhex(value[2:]))
    return column.literal((value.strip() if pattern else value).encode())
