"""Show rows for people, in one line of printable ASCII."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from sluice.etl.changes.formats.sql_text import display_text
from sluice.etl.display_units import format_value

_MAX_VALUE_CHARS = 60


def row_text(images: Mapping[str, pa.Array], names: Iterable[str], row: int) -> str:
    """Return values of the row at a place: `id=7, name='x'`; long ones are cut."""
    return ", ".join(
        f"{name}={format_value(display_text(images[name], row), _MAX_VALUE_CHARS)}"
        for name in names
    )
