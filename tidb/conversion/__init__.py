"""Convert values from one column type to another exactly as TiDB does, or refuse to.

TiDB converts the rows of a table itself when a column's type changes, and writes none of it to the
binlog: so a process with a copy computes the new values from the old ones.
"""

from __future__ import annotations

import pyarrow as pa

from sluice.tidb.codec.columnar import arrow_type, from_values
from sluice.tidb.conversion.context import (
    ConversionError,
    ConversionSession,
    NotConvertible,
    ValueOutOfRange,
    shown,
)
from sluice.tidb.conversion.convert import convert_value
from sluice.tidb.schema import Column

__all__ = ["ConversionError", "ConversionSession", "convert", "shown"]


def convert(
    values: list[object], source: Column, target: Column, session: ConversionSession
) -> pa.Array:
    """Return the new values of a column in the Arrow type of its rows.

    `values`: the old ones as `sluice.tidb.codec.column_value` lists them, ENUM and SET as numbers,
    None for NULL. Raises ConversionError for the first that can't be converted exactly.
    """
    return from_values(
        [_converted(value, source, target, session) for value in values], arrow_type(target)
    )


def _converted(value: object, source: Column, target: Column, session: ConversionSession) -> object:
    if value is None:
        return None
    try:
        return convert_value(value, source, target, session)
    except ValueOutOfRange as misfit:
        if session.strict:
            raise ConversionError(
                value, f"{misfit}, which the upstream session's strict mode forbids"
            ) from misfit
        if misfit.replacement is None and target.not_null:
            raise ConversionError(
                value, f"{misfit}, which makes it NULL in a column that is NOT NULL"
            ) from misfit
        return misfit.replacement
    except NotConvertible as refused:
        raise ConversionError(value, str(refused)) from refused
