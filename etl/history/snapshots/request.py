"""Define the request for a snapshot: its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sluice.etl.copy import DumplingOptions

__all__ = ["ARCHIVE", "AUTO", "DOWNSTREAM", "TIDB", "SnapshotRequest"]

DOWNSTREAM, TIDB, ARCHIVE, AUTO = "downstream", "tidb", "archive", "auto"


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """A request for a snapshot; `source`: AUTO, DOWNSTREAM, TIDB, ARCHIVE or a URL.

    DOWNSTREAM, at its checkpoint; TIDB, at what is landed or now; ARCHIVE, the youngest snapshot
    rolled forward; or the URL of a folder that Dumpling wrote. `full`: every table is read, also
    those that have not changed since the youngest snapshot.
    """

    source: str
    full: bool = False
    options: DumplingOptions = field(default_factory=DumplingOptions)

    @classmethod
    def parse(
        cls, source: str, *, full: bool = False, options: DumplingOptions | None = None
    ) -> Self:
        """As people write it: a dump's folder may be a path."""
        known = source in (DOWNSTREAM, TIDB, ARCHIVE, AUTO) or "://" in source
        return cls(
            source if known else str(Path(source).absolute()), full, options or DumplingOptions()
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; `from_json` is the inverse."""
        return {"source": self.source, "full": self.full, "options": self.options.to_json()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Parse the result of `to_json`."""
        return cls(
            document["source"], document["full"], DumplingOptions.from_json(document["options"])
        )
