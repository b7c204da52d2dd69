"""The kinds of sources, opened anywhere from what `Source.spec` says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etl.copy.dumpling import DumplingFolder
from etl.copy.errors import CopyError
from etl.copy.source import Source


def place_of(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The URL that whoever reads a source with this `Source.spec` reads files at; none for a database."""
    return (str(spec["url"]),) if "url" in spec else ()


def open_source(spec: Mapping[str, Any]) -> Source:
    """The source that `spec` describes, to read chunks from. Raises CopyError."""
    if spec.get("kind") == "dumpling":
        return DumplingFolder.from_spec(spec)
    if spec.get("kind") == "tidb-sql":
        from etl.copy.tidb_sql import TidbSql  # workers that read a dump load no database client

        return TidbSql.from_spec(spec)
    if spec.get("kind") == "base":
        from etl.copy.base_source import BaseSource

        return BaseSource.from_spec(spec)
    raise CopyError(f"a source of the unknown kind {spec.get('kind')!r}")
