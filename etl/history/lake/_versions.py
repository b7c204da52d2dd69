"""Find the schema version under which the rows of a definition lie.

A window record has a table's definition, but not since when it holds. So the first writer of rows
of a definition notes it with the schema version of then, and later ones find it:
`lake-versions/<schema>.<table>/<version>.json`, created exclusively, also for people who want to
know a version's columns. A definition that is laid out as the one before it (an index more, a
longer VARCHAR) is the same version to the lake; two writers that come first at a time may note two,
which does no harm.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sluice.etl.history.lake._names import table_folder
from sluice.etl.history.lake._rows import LakeLayout
from sluice.relay import RelayCorruptError
from sluice.relay.storage import Storage
from sluice.tidb import column_types
from sluice.tidb.schema import Column, Table

__all__ = ["LakeSchemaVersions"]


class LakeSchemaVersions:
    """The schema versions of all tables, in an archive's storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[tuple[str, str], int] = {}
        """The versions by table folder and digest."""
        self._read: set[str] = set()

    def of(self, table: Table, layout: LakeLayout, schema_version: int) -> int:
        """Return the version of a table's layout; `schema_version`: TiDB's, at which it holds.

        Raises RelayCorruptError, OSError.
        """
        folder, digest = table_folder(table.schema_name, table.name), _digest(layout)
        if (folder, digest) not in self._known:
            self._look(folder)
        while (folder, digest) not in self._known:
            document = _document(table, layout, schema_version, digest)
            try:
                self._storage.create(f"lake-versions/{folder}/{schema_version:020d}.json", document)
                self._known[folder, digest] = schema_version
            except FileExistsError:
                self._look(folder)
                schema_version += 1
        return self._known[folder, digest]

    def _look(self, folder: str) -> None:
        for name in self._storage.names(f"lake-versions/{folder}"):
            path = f"lake-versions/{folder}/{name}"
            if path in self._read:
                continue
            try:
                found = json.loads(self._storage.read(path))
                self._known.setdefault((folder, str(found["digest"])), int(found["schema_version"]))
            except (ValueError, KeyError, TypeError) as error:
                raise RelayCorruptError(
                    f"{self._storage.url}/{path}: {error}",
                    hint=(
                        "remove the file: changes of these columns will lie under a version of"
                        " their own"
                    ),
                ) from None
            self._read.add(path)


def _digest(layout: LakeLayout) -> str:
    text = json.dumps([layout.table_id, [(c.source, c.name, str(c.type)) for c in layout.columns]])
    return hashlib.sha256(text.encode()).hexdigest()


def _document(table: Table, layout: LakeLayout, schema_version: int, digest: str) -> bytes:
    by_name = {column.name: column for column in table.stored_columns}
    columns = [
        {"name": c.source, "lake_name": c.name, "lake_type": str(c.type)}
        | _upstream_type(by_name.get(c.source))
        for c in layout.columns
    ]
    document = {
        "schema": table.schema_name,
        "table": table.name,
        "table_id": table.id,
        "schema_version": schema_version,
        "digest": digest,
        "columns": columns,
    }
    return json.dumps(document, ensure_ascii=False, indent=1).encode() + b"\n"


def _upstream_type(column: Column | None) -> dict[str, Any]:
    if column is None:
        return {}
    return {
        "type": column_types.NAMES.get(column.tp, ""),
        "length": column.flen,
        "decimals": column.decimal,
        "unsigned": column.unsigned,
        "charset": column.charset,
        "elements": list(column.elems),
    }
