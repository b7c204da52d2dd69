"""What a bootstrap is asked for, as its job's specification keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from etl.copy.source import Source
from etl.copy.sources import open_source

__all__ = ["Asked"]

_SHOWN = 500


@dataclass(frozen=True, slots=True)
class Asked:
    """`source`: what `Source.spec` says. `tables`: globs, () for all that the rules want. `into`: databases downstream
    that may hold other tables.
    """

    source: Mapping[str, Any]
    tables: tuple[str, ...] = ()
    into: tuple[str, ...] = ()

    def open_source(self) -> Source:
        """The source, as it was when the job was begun. Raises CopyError."""
        return open_source(self.source)

    def __str__(self) -> str:
        return json.dumps(self.to_json())[:_SHOWN]

    def to_json(self) -> dict[str, Any]:
        """As JSON values; `from_json` is the inverse."""
        return asdict(self) | {"source": dict(self.source), "tables": list(self.tables), "into": list(self.into)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(document["source"], tuple(document["tables"]), tuple(document["into"]))
