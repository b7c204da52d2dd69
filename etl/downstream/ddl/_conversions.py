"""Compute the new values of columns that a DDL converts: which, how they are read, the result.

TiDB rewrites a column whose type changes in a way that touches rows (a reorganisation; the column
gets a new id) by rules of its own, and none of it is in the binlog. No server has the same rules,
so the new values are computed here from those that the downstream holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.errors import SluiceError
from sluice.etl.changes.formats.ddl_columns import ColumnChange, changed_columns
from sluice.etl.downstream.ddl._generate import column_type
from sluice.tidb import column_types
from sluice.tidb.codec.float import format_float
from sluice.tidb.conversion import ConversionError, ConversionSession, convert
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column

_SHORT_TEXT = (*column_types.VARYING, column_types.CHAR)
_LARGE_FLOAT, _SMALL_FLOAT = 1e15, 1e-15
_SHOWN_DIGITS = 6
_LEADING_ZEROS = re.compile(r"^(-?)0+(?=\d)")


class CannotConvert(SluiceError):
    """Values that can't be made what the upstream made of them.

    Names column, both types, one value and the reason. `raw`: the value as `value_expression` gave
    it.
    """

    hint = "convert the column downstream by hand, then `sluice ddl skip`"

    def __init__(self, message: str, raw: bytes | None = None) -> None:
        super().__init__(message)
        self.raw = raw


@dataclass(frozen=True, slots=True)
class Conversion:
    """A column whose values are converted: where it is, its old type and its new one."""

    change: ColumnChange
    job_id: int

    @property
    def scratch(self) -> str:
        """Name of the column that takes the new values until it takes the old one's place."""
        return f"sluice_new_{self.job_id}_{self.change.new.id}"

    @property
    def title(self) -> str:
        """Return column and both types, for messages."""
        old, new = self.change.old, self.change.new
        renamed = f" (now {new.name})" if new.name != old.name else ""
        return (
            f"{self.change.before.full_name}.{old.name}{renamed} from {column_type(old)} to"
            f" {column_type(new)}"
        )


def conversions(ddl: DdlJob) -> list[Conversion]:
    """Return the columns of a DDL whose values have to be computed."""
    job_id = ddl.job_id
    return [
        Conversion(change, job_id)
        for change in changed_columns(ddl)
        if change.before.is_base_table and _computed(change.old, change.new)
    ]


def _computed(old: Column, new: Column) -> bool:
    if old.generated or new.generated:
        return False
    if old.kind == "float" and new.kind == "double":
        return True  # no rows are rewritten upstream, but the downstream may hold fewer digits
    return old.id != new.id and not _served(old, new)


def _served(old: Column, new: Column) -> bool:
    """Return whether any server's own conversion is exact for every value.

    It is for integers, which are cut off at the bounds, and for longer text.
    """
    if old.kind == new.kind == "int":
        return True
    if (
        old.kind != new.kind
        or old.kind not in ("text", "binary")
        or (old.charset, old.tp == column_types.CHAR) != (new.charset, new.tp == column_types.CHAR)
    ):
        return False
    if old.kind == "binary" and old.tp == column_types.CHAR:
        return old.flen == new.flen
    return new.flen < 0 or (
        0 <= old.flen <= new.flen and (new.tp in _SHORT_TEXT) == (old.tp in _SHORT_TEXT)
    )


def value_expression(column: Column, reference: str) -> str:
    """Return SQL whose text identifies a column's value to the byte, for `parse_value`.

    `reference`: the column in SQL. Of FLOAT(M,D) and DOUBLE(M,D) it is what they show: MariaDB
    keeps -0.010000000000000009 for the -0.01 that it shows and the upstream has.
    """
    if column.kind == "binary":
        return reference
    if column.kind in ("text", "json"):
        return f"CAST(CONVERT({reference} USING utf8mb4) AS BINARY)"
    if column.kind in ("float", "double") and column.decimal < 0:
        return f"CAST({reference}+0e0 AS CHAR)"
    return (
        f"CAST(CAST({reference} AS UNSIGNED) AS CHAR)"
        if column.kind in ("enum", "set", "bit")
        else f"CAST({reference} AS CHAR)"
    )


def parse_value(column: Column, raw: bytes) -> Any:
    """Return the value from the text of `value_expression`."""
    match column.kind:
        case "text" | "binary":
            return raw
        case "int" | "year" | "enum" | "set" | "bit":
            return int(raw)
        case "float":
            return float(np.float32(raw.decode()))
        case "double":
            return float(raw)
        case "decimal":
            return _LEADING_ZEROS.sub(r"\1", raw.decode())  # of ZEROFILL
    return raw.decode()


def computed(
    conversion: Conversion, raw: Sequence[bytes], session: ConversionSession
) -> tuple[pa.Array, set[str]]:
    """Return the new values, and the texts of old ones that were taken for what they look like.

    Raises CannotConvert.
    """
    old, new = conversion.change.old, conversion.change.new
    values = [parse_value(old, value) for value in raw]
    try:
        found = convert(values, old, new, session)
        taken = (
            set(_accept_float_prefixes(values, old, new, session)) if old.kind == "float" else set()
        )
    except ConversionError as error:
        raw_value = next((raw[n] for n, value in enumerate(values) if value == error.value), None)
        raise CannotConvert(f"{conversion.title}: the value {error}", raw_value) from error
    return found, taken


def _accept_float_prefixes(
    values: Sequence[float], old: Column, new: Column, session: ConversionSession
) -> Iterator[str]:
    """Yield the shown texts of FLOATs that are taken for what they look like.

    TiDB shows, and the downstream holds, six digits at most: several numbers look the same. Where
    they don't all become the same, one with six digits raises ConversionError; one with fewer is
    what it looks like, if anything is.
    """
    for value in values:
        if value == 0 or _SMALL_FLOAT <= abs(value) < _LARGE_FLOAT:
            continue
        shown = format_float(value)
        if (
            len(
                {
                    repr(item)
                    for item in convert(
                        list(_float_bounds(value, shown)), old, new, session
                    ).to_pylist()
                }
            )
            == 1
        ):
            continue
        if len(shown.partition("e")[0].strip("-").replace(".", "")) >= _SHOWN_DIGITS:
            raise ConversionError(
                value,
                f"{shown}: TiDB shows six digits of such a FLOAT, the downstream holds no more, and"
                " the others count here",
            )
        yield shown


def _float_bounds(value: float, shown: str) -> Iterator[float]:
    """Yield the least and the greatest FLOAT that are shown as `shown`."""
    for end in (np.float32(-np.inf), np.float32(np.inf)):
        number = np.float32(value)
        while np.isfinite(step := np.nextafter(number, end)) and format_float(step) == shown:
            number = step
        yield float(number)
