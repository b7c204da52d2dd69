"""Make the columns that rules add to a table: generated ones, which the downstream computes.

Both servers compute them by one expression, each from its own row: nothing is written when a row
is, and a verification asks the upstream for the expression (`Column.computed`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from sluice.etl.changes.conditions import (
    MAX_DECIMAL_DIGITS,
    MAX_DECIMAL_SCALE,
    BoundValue,
    ConditionError,
    ValueForm,
    parse_value,
)
from sluice.tidb import column_types as types
from sluice.tidb.column_types import FLAG_UNSIGNED
from sluice.tidb.schema import Column, Table

_TYPE = re.compile(
    r"(?P<kind>varchar|text|mediumtext|longtext|bigint|decimal|date|datetime)"
    r"(?:\s*\(\s*(?P<size>\d{1,5})\s*(?:,\s*(?P<scale>\d{1,2})\s*)?\))?(?P<unsigned>\s+unsigned)?",
    re.IGNORECASE,
)
_SIZES = {"varchar": (1, 1), "decimal": (1, 2), "datetime": (0, 1)}
"""How many numbers stand in parentheses behind each type, at least and at most."""
_TEXT_BYTES = {
    types.TEXT: 65_535,
    types.MEDIUMTEXT: 16_777_215,
    types.LONGTEXT: 4_294_967_295,
}
_LONG_TYPES = {"text": types.TEXT, "mediumtext": types.MEDIUMTEXT, "longtext": types.LONGTEXT}
_MAX_VARCHAR_CHARS = 16_383
_DERIVED_VARCHAR_CHARS = 1_000
"""Wider texts become TEXT: a row has room for 65,535 bytes of VARCHARs."""
_UTF8_BYTES = 4
_MAX_SECOND_DIGITS = 6


@dataclass(frozen=True, slots=True)
class ComputedColumn:
    """A column that a rule adds.

    `value`: its expression; `type`: its type downstream, "" for the derived one.
    """

    value: str
    type: str = ""

    def check(self) -> None:
        """Raise ConditionError if the expression or the type can't be read."""
        parse_value(self.value)
        if self.type:
            _typed(self.type, Column(0, "", 0, types.NULL))

    def bound(self, table: Table) -> BoundValue:
        """Return the expression over the table's columns. Raises ConditionError."""
        return BoundValue(parse_value(self.value), table)

    def column(self, name: str, number: int, table: Table) -> Column:
        """Return the column, the `number`th behind those of the table as rules shape it.

        Raises ConditionError.
        """
        bound = self.bound(table)
        # TiDB's ids are positive.
        column = Column(-1 - number, name, len(table.columns) + number, types.NULL)
        column = _typed(self.type, column) if self.type else _derived(bound.form, column)
        if why := _misfit(bound.form, column):
            raise ConditionError(f"{self.type} is too small, or another type: {why}")
        upstream = bound.sql(lambda read: read.source_name)
        if column.kind == "decimal":  # of the column's digits, as the downstream has it
            upstream = f"cast({upstream} as decimal({column.flen},{column.decimal}))"
        return replace(column, generated=bound.sql(lambda read: read.name), computed=upstream)


def _derived(form: ValueForm, column: Column) -> Column:
    match form.kind:
        case "text" if form.width <= _DERIVED_VARCHAR_CHARS:
            return _typed(f"varchar({max(form.width, 1)})", column)
        case "text":
            room = form.width * _UTF8_BYTES
            name = next(
                (name for name, tp in _LONG_TYPES.items() if room <= _TEXT_BYTES[tp]), "longtext"
            )
            return _typed(name, column)
        case "int":
            return _typed(f"bigint{' unsigned' if form.unsigned else ''}", column)
        case "decimal":
            return _typed(f"decimal({form.width},{form.scale})", column)
        case "datetime":
            return _typed(f"datetime({form.scale})", column)
    return _typed("date", column)


def _typed(text: str, column: Column) -> Column:
    """Return the column with a type. Raises ConditionError."""
    match = _TYPE.fullmatch(text.strip())
    kind = match["kind"].lower() if match else ""
    sizes = [int(size) for size in (match["size"], match["scale"]) if size] if match else []
    fewest, most = _SIZES.get(kind, (0, 0))
    unsigned = bool(match and match["unsigned"])
    if not kind or not fewest <= len(sizes) <= most or (unsigned and kind != "bigint"):
        raise ConditionError(
            f"type = {text!r}: VARCHAR(n), TEXT, MEDIUMTEXT, LONGTEXT, BIGINT, BIGINT UNSIGNED,"
            " DECIMAL(p,s), DATE or DATETIME(n) expected"
        )
    size, scale = [*sizes, 0, 0][:2]
    if kind == "varchar" or kind in _LONG_TYPES:
        tp = types.VARCHAR if kind == "varchar" else _LONG_TYPES[kind]
        flen = size if kind == "varchar" else -1
        if flen > _MAX_VARCHAR_CHARS:
            raise ConditionError(f"type = {text!r}: servers have {_MAX_VARCHAR_CHARS} characters")
        return replace(column, tp=tp, flen=flen, charset="utf8mb4", collate="utf8mb4_bin")
    plain = replace(column, charset="binary", collate="binary")
    match kind:
        case "bigint":
            return replace(plain, tp=types.BIGINT, flag=FLAG_UNSIGNED if unsigned else 0)
        case "decimal":
            if not 0 < size <= MAX_DECIMAL_DIGITS or scale > min(size, MAX_DECIMAL_SCALE):
                raise ConditionError(f"type = {text!r}: no server has such a DECIMAL")
            return replace(plain, tp=types.DECIMAL, flen=size, decimal=scale)
        case "datetime":
            if size > _MAX_SECOND_DIGITS:
                raise ConditionError(f"type = {text!r}: a second has {_MAX_SECOND_DIGITS} digits")
            return replace(plain, tp=types.DATETIME, decimal=size)
    return replace(plain, tp=types.DATE)


def _misfit(form: ValueForm, column: Column) -> str:
    """Return why the column doesn't hold every value of a form exactly, "" if it does."""
    if form.kind == "text" and column.kind == "text":
        chars = column.flen if column.flen >= 0 else _TEXT_BYTES[column.tp] // _UTF8_BYTES
        is_widest = column.tp == types.LONGTEXT
        return (
            "" if form.width <= chars or is_widest else f"texts have up to {form.width} characters"
        )
    if form.is_number and column.kind == "decimal":
        whole = column.flen - column.decimal
        if form.whole_digits <= whole and form.scale <= column.decimal:
            return ""
        return f"numbers have up to {form.whole_digits} digits, and {form.scale} behind the point"
    if form.kind == "int" and column.kind == "int":
        if form.unsigned in (None, column.unsigned):
            return ""
        return f"numbers are {'un' if form.unsigned else ''}signed"
    if form.kind == column.kind == "datetime":
        return "" if form.scale == column.fsp else f"a second has {form.scale} digits"
    return "" if form.kind == column.kind else f"values are {form.kind}"
