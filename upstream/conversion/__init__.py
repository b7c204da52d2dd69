"""Conversions of values from one column type to another, exactly as TiDB does them, or refused.

TiDB converts the rows of a table itself when a column's type changes, and writes none of it to the binlog: so whoever
holds a copy computes the new values from the old ones.
"""

from __future__ import annotations

import pyarrow as pa

from upstream.codec.columnar import arrow_type, from_values
from upstream.conversion.context import ConversionError, MisfitError, RefusedError, Session, shown
from upstream.conversion.rules import convert_value
from upstream.schema import Column

__all__ = ["ConversionError", "Session", "convert", "shown"]


def convert(values: list[object], source: Column, target: Column, session: Session) -> pa.Array:
    """The new values of a column in the Arrow type of its rows. `values`: the old ones as `upstream.codec.column_value`
    lists them, ENUM and SET as numbers, None for NULL. Raises ConversionError for the first that can't be converted
    exactly.
    """
    return from_values([_converted(value, source, target, session) for value in values], arrow_type(target))


def _converted(value: object, source: Column, target: Column, session: Session) -> object:
    if value is None:
        return None
    try:
        return convert_value(value, source, target, session)
    except MisfitError as misfit:
        if session.strict:
            raise ConversionError(value, f"{misfit}, which the upstream session's strict mode forbids") from misfit
        if misfit.instead is None and target.not_null:
            raise ConversionError(value, f"{misfit}, which makes it NULL in a column that is NOT NULL") from misfit
        return misfit.instead
    except RefusedError as refused:
        raise ConversionError(value, str(refused)) from refused
