"""Define the request for a restore into files: the moment, the tables, the format, the folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sluice.etl.history.as_of.output import FORMATS
from sluice.etl.restore.errors import RestoreError
from sluice.relay.json_codec import JsonDocument

__all__ = ["FilesRequest"]


@dataclass(frozen=True, slots=True)
class FilesRequest(JsonDocument):
    """Everything that was committed through `until` (TSO.

    0: all that is landed when it is asked for), of the tables that fit one of `tables` then (globs
    of ``schema.table``; () for all), as files of the format `kind` (parquet, csv, sql) in `folder`.
    `beside`: other files may be there.
    """

    KIND: ClassVar = "restore-files"
    """Kind of the jobs that do it."""

    until: int
    tables: tuple[str, ...]
    folder: Path
    kind: str = "parquet"
    beside: bool = False

    def check(self) -> None:
        """Raise RestoreError for an unknown format."""
        if self.kind not in FORMATS:
            raise RestoreError(f"{self.kind} is no form of files; there are {', '.join(FORMATS)}")

    def to_json(self) -> dict[str, Any]:
        """Return JSON values in the order of the files that have them; `from_json` reads them."""
        return self.asked() | {"folder": str(self.folder), "beside": self.beside}

    def asked(self) -> dict[str, Any]:
        """As the manifest has it."""
        return {"until": self.until, "tables": list(self.tables), "kind": self.kind}
