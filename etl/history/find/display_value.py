"""Show values and rows for people: bytes in hex, long ones cut, NULL not the empty text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from sluice.etl.changes.formats.sql_columns import display_text
from sluice.etl.display_units import format_value
from sluice.tidb.codec.float import format_float

__all__ = [
    "DisplayValue",
    "display_value",
    "raw_value",
    "row_text",
]
MAX_SHOWN_CHARS = 240
_MAX_SHOWN_BYTES = 80

_MAX_VALUE_CHARS = 60


@dataclass(frozen=True, slots=True)
class DisplayValue:
    """A display value; `kind`: null, text, bytes, number.

    `text`: what is shown, bytes in hex; `size`: characters, or bytes, of the whole; `cut`: `text`
    is its beginning.
    """

    kind: str
    text: str = ""
    size: int = 0
    cut: bool = False


def raw_value(array: pa.Array) -> str | bytes | None:
    """Return the first value of an array, whole.

    Numbers as text, and text that isn't utf-8 as its bytes.
    """
    if array.null_count and not array[0].is_valid:
        return None
    if array.type in (pa.large_string(), pa.string()):
        raw: bytes = array.slice(0, 1).cast(pa.large_binary())[0].as_py()
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw
    value = array[0].as_py()
    if isinstance(value, bytes):
        return value
    return format_float(value) if pa.types.is_float32(array.type) else str(value)


def display_value(array: pa.Array) -> DisplayValue:
    """Return the first value of an array for display; `sluice.tidb.rows` decoded the array."""
    value = raw_value(array)
    if value is None:
        return DisplayValue("null")
    if isinstance(value, bytes):
        return DisplayValue(
            "bytes", value[:_MAX_SHOWN_BYTES].hex(), len(value), len(value) > _MAX_SHOWN_BYTES
        )
    kind = "text" if array.type in (pa.large_string(), pa.string()) else "number"
    return DisplayValue(kind, value[:MAX_SHOWN_CHARS], len(value), len(value) > MAX_SHOWN_CHARS)


def row_text(images: Mapping[str, pa.Array], names: Iterable[str], row: int) -> str:
    """Return values of the row at a place: `id=7, name='x'`; long ones are cut."""
    return ", ".join(
        f"{name}={format_value(display_text(images[name], row), _MAX_VALUE_CHARS)}"
        for name in names
    )
