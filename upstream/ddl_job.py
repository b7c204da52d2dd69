"""What a DDL job does, as window records tell it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from upstream.schema import Schema, Table


@dataclass(frozen=True, slots=True)
class Effect:
    """What one job leaves behind, by id; None = gone. Ids that aren't named are as before."""

    schemas: dict[int, Schema | None] = field(default_factory=dict)
    tables: dict[int, Table | None] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """`{"schemas": {id: Schema|null}, "tables": {id: Table|null}}`, ids as text; `from_json` is the inverse."""
        return {
            "schemas": {str(i): s and s.to_json() for i, s in self.schemas.items()},
            "tables": {str(i): t and t.to_json() for i, t in self.tables.items()},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Effect:
        """The inverse of `to_json`."""
        return cls(
            {int(i): s and Schema.from_json(s) for i, s in document["schemas"].items()},
            {int(i): t and Table.from_json(t) for i, t in document["tables"].items()},
        )
