"""Open sources of any kind anywhere, from `RowSource.spec`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.source import RowSource


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
