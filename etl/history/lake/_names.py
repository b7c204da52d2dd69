"""Name the lake's folders, and columns that would clash with those that the lake adds."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

from sluice.tidb.rows import ROWID_NAME

__all__ = [
    "COMMIT_TIME",
    "COMMIT_TS",
    "EXACT",
    "OP",
    "POS",
    "ROWID",
    "START_TS",
    "column_name",
    "folder",
    "table_folder",
]

OP, COMMIT_TS, COMMIT_TIME, START_TS, POS, EXACT = (
    "_op",
    "_commit_ts",
    "_commit_time",
    "_start_ts",
    "_pos",
    "_exact",
)
ROWID = ROWID_NAME
_LAKE_COLUMNS = {OP, COMMIT_TS, COMMIT_TIME, START_TS, POS, EXACT, ROWID, "day", "schema_version"}
"""Columns that the lake adds, and those that readers make of the folders' names."""
_MAX_NAME_BYTES = 200  # bytes of a folder's name; file systems take 255


def column_name(name: str) -> str:
    """Return the name of a table's column in the lake: its own.

    One that is, but for underscores before it, a name of the lake's own gets another underscore
    before it: ``day`` is ``_day``, ``_day`` is ``__day``, ``_op`` is ``__op``.
    """
    folded = name.lower()
    bare = re.sub(r"^_+", "", folded)
    taken = any(own.lstrip("_") == bare and len(folded) >= len(own) for own in _LAKE_COLUMNS)
    return f"_{name}" if taken else name


def table_folder(schema: str, table: str) -> str:
    """Return a table's folder below ``lake/``: both names percent-encoded, a dot between them.

    A name that is too long for a file system is cut, and made unique by a digest.
    """
    name = ".".join(quote(part, safe="").replace(".", "%2E") for part in (schema, table))
    if len(name) <= _MAX_NAME_BYTES:
        return name
    digest = hashlib.sha256(f"{schema}\0{table}".encode()).hexdigest()[:16]
    return f"{name[: _MAX_NAME_BYTES - 17].rsplit('%', 1)[0]}~{digest}"


def folder(table: str, schema_version: int, day: str) -> str:
    """Return the folder of a `table_folder`, version and UTC day, below the archive's root."""
    return f"lake/{table}/schema_version={schema_version}/day={day}"
