"""Describe a bootstrap's request as its job's specification keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sluice.etl.copy.source import RowSource
from sluice.etl.copy.sources import open_source
from sluice.relay.json_codec import JsonDocument

__all__ = ["BootstrapSpec"]

_MAX_SHOWN_CHARS = 500


@dataclass(frozen=True, slots=True)
class BootstrapSpec(JsonDocument):
    """The specification of a bootstrap.

    `source`: the values of `RowSource.spec`. `tables`: globs, () for all that the rules want.
    `into`: databases downstream that may hold other tables.
    """

    JSON_COMPLETE: ClassVar = True

    source: Mapping[str, Any]
    tables: tuple[str, ...] = ()
    into: tuple[str, ...] = ()

    def open_source(self) -> RowSource:
        """Return the source, as it was when the job was begun. Raises CopyError."""
        return open_source(self.source)

    def __str__(self) -> str:
        return json.dumps(self.to_json())[:_MAX_SHOWN_CHARS]
