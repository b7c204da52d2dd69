"""Show values and rows as text, for people and for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

__all__ = ["MAX_EXAMPLES", "as_json", "as_text", "example_rows"]

MAX_EXAMPLES = 20
"""The most rows shown of what is wrong."""
_MAX_CHARS = 200


def as_text(value: object) -> str:
    """Render a value on one line, and not too long."""
    if value is None:
        return "NULL"
    text = f"0x{value.hex()}" if isinstance(value, bytes) else str(value)
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"


def example_rows(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[dict[str, str]]:
    """Return rows with their columns' names."""
    return [dict(zip(names, map(as_text, row), strict=True)) for row in rows]


def as_json(value: Any) -> Any:
    """Convert a result's value into values that JSON has."""
    if isinstance(value, Mapping):
        return {as_text(key): as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(one) for one in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Decimal) and value == value.to_integral_value() and abs(value) < 2**53:
        return int(value)
    return as_text(value)
