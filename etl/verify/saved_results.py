"""Keep what a verification has found with its job, so that the next process continues.

jobs/<id>/verified.json            the tables that are compared
jobs/<id>/apart/<number>.arrow     rows of a table that differ: the upstream's, then the
                                   downstream's
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import pyarrow as pa

from sluice.etl.verify.result import TableResult
from sluice.etl.verify.row_diff import RowDiff
from sluice.relay.storage import Storage
from sluice.tidb.schema import Table

__all__ = ["SavedResults"]


class SavedResults:
    """The saved results of one job. Every method raises OSError."""

    def __init__(self, storage: Storage, job: str) -> None:
        self._storage = storage
        self._path = f"jobs/{job}/verified.json"
        self._folder = f"jobs/{job}/apart"

    def load(self) -> dict[str, TableResult]:
        """Load the tables by full name."""
        try:
            document = json.loads(self._storage.read(self._path))
        except FileNotFoundError:
            return {}
        return {one["name"]: TableResult.from_json(one) for one in document}

    def save(self, results: Mapping[str, TableResult]) -> None:
        """Write the results in the place of earlier ones."""
        self._storage.replace(
            self._path, json.dumps([one.to_json() for one in results.values()]).encode() + b"\n"
        )

    def keep(self, found: RowDiff) -> None:
        """Rows of a table that differ."""
        written = io.BytesIO()
        for side in (found.come, found.gone):
            described = side.replace_schema_metadata({"table": json.dumps(found.table.to_json())})
            with pa.ipc.new_stream(written, described.schema) as writer:
                writer.write_table(described)
        self._storage.replace(f"{self._folder}/{found.table.id}.arrow", written.getvalue())

    def apart(self) -> dict[str, RowDiff]:
        """Load the rows that differ, by the full name of their table."""
        found = {}
        for name in self._storage.names(self._folder):
            data = io.BytesIO(self._storage.read(f"{self._folder}/{name}"))
            come, gone = (pa.ipc.open_stream(data).read_all() for _ in range(2))
            table = Table.from_json(json.loads(come.schema.metadata[b"table"]))
            found[table.full_name] = RowDiff(
                table, come.replace_schema_metadata(), gone.replace_schema_metadata()
            )  # fmt: skip
        return found
