"""Name a bootstrap's source, in its request and in its job, and open it again from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sluice.etl.copy.dumpling import DumplingFolder, DumplingOptions
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.source import RowSource
from sluice.relay.json_codec import JsonDocument

_MAX_SHOWN_CHARS = 500


def source_url(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the URL from which files of a source with this `RowSource.spec` are read.

    () for a database.
    """
    return (str(spec["url"]),) if "url" in spec else ()


def open_source(spec: Mapping[str, Any]) -> RowSource:
    """Return the source that `spec` describes, to read chunks from. Raises CopyError."""
    if spec.get("kind") == "dumpling":
        return DumplingFolder.from_spec(spec)
    if spec.get("kind") == "tidb-sql":
        # workers that read a dump load no database client
        from sluice.etl.copy.tidb_sql import TidbSql

        return TidbSql.from_spec(spec)
    if spec.get("kind") == "snapshot":
        from sluice.etl.copy.snapshot_source import SnapshotSource

        return SnapshotSource.from_spec(spec)
    raise CopyError(f"a source of the unknown kind {spec.get('kind')!r}")


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


@dataclass(frozen=True, slots=True)
class BootstrapRequest:
    """A person's request for a bootstrap.

    `url`: a Dumpling folder's, TIDB, or SNAPSHOT. `globs`: names of tables (schema.table, * and
    ?), () for all that the rules want. `into`: databases downstream that may hold other tables.
    The job records `by`, the user.
    """

    url: str
    options: DumplingOptions = field(default_factory=DumplingOptions)
    globs: tuple[str, ...] = ()
    into: tuple[str, ...] = ()
    by: str = "somebody"
