"""Describe the fields of a LOAD DATA line, for `formats.load_data` and the sinks' statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class LoadLayout:
    """The fields of a line: all `columns` in order.

    Of some the text is `bits` (a number) or `hex` (digits).
    """

    columns: tuple[str, ...]
    bits: tuple[str, ...] = ()
    hex: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()
    """Columns that the upstream computes and stores."""
    unsure: tuple[str, ...] = ()
    """Generated columns for which another server may compute another value."""
    left_out: tuple[str, ...] = ()
    """Columns that aren't to be written, as the server computes them."""
    blank_ends: tuple[str, ...] = ()
    """Quoted names and types of the ENUMs and SETs with an element that ends with a blank."""

    @property
    def written(self) -> tuple[str, ...]:
        """Return the columns that are to be written."""
        return tuple(name for name in self.columns if name not in self.left_out)

    def to_json(self) -> dict[str, Any]:
        """Return the first three by name; of the others those that aren't empty.

        `from_json` is the inverse.
        """
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: list(names)
            for name, names in named.items()
            if names or name in ("columns", "bits", "hex")
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LoadLayout:
        """Read what `to_json` has written."""
        return cls(**{name: tuple(names) for name, names in document.items()})
