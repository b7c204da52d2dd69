"""Show rows for people, in one line of printable ASCII."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from sluice.etl.changes.formats.sql_text import display_text

_MAX_VALUE_CHARS = 60


def row_text(images: Mapping[str, pa.Array], names: Iterable[str], row: int) -> str:
    """Return values of the row at a place: `id=7, name='x'`; long ones are cut."""
    return ", ".join(f"{name}={_value(images[name], row)}" for name in names)


def _value(array: pa.Array, row: int) -> str:
    value = display_text(array, row)
    text = (
        "NULL"
        if value is None
        else f"0x{value.hex()}"
        if isinstance(value, bytes)
        else ascii(value)
    )
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}…"
