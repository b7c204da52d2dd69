"""Write tables of the past as folders of Parquet files: executors write, the client commits.

    <url>/<schema.table>.parquet/<token>-<number>.parquet
    <url>/<schema.table>.parquet/_SUCCESS    created last: the folder is whole

No row passes through Spark's driver or the client, so a table may be as large as the store.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sluice.errors import RequestError
from sluice.etl.copy.snapshot_files import write_files
from sluice.etl.history.as_of.aggregations import CHUNK_ROWS, AggregateResult
from sluice.etl.history.as_of.bucket import Results
from sluice.etl.history.as_of.lineage import TableGroup
from sluice.etl.history.as_of.output import file_name
from sluice.relay.archive import SnapshotFile
from sluice.relay.storage import Storage, open_storage

__all__ = ["TableFolders", "WriteTableFiles"]

_SUCCESS = "_SUCCESS"
"""Readers of Parquet folders skip names that begin with an underscore."""


@dataclass(frozen=True, slots=True)
class WriteTableFiles:
    """The rows as files of each table's folder; what comes back is each file as JSON."""

    url: str

    def __call__(self, family: TableGroup, found: Results) -> Iterator[AggregateResult]:
        storage = open_storage(self.url)
        for (moment, name), rows in found.items():
            table = family.version_at(moment, name).table
            held = [c.name for c in table.stored_columns if c.name in rows.column_names]
            batches = rows.select(held).to_batches(CHUNK_ROWS)
            for file in write_files(storage, _folder(name), table, batches):
                yield AggregateResult(moment, name, json.dumps(file.to_json()).encode())


class TableFolders:
    """The folders of tables at a URL: a context, which removes them if it ends with an error."""

    def __init__(self, url: str, names: Iterable[str]) -> None:
        """Look at what is there. Raises RequestError if a folder exists."""
        self._storage: Storage = open_storage(url)
        self._names = tuple(names)
        for name in self._names:
            if self._storage.names(_folder(name)):
                raise RequestError(
                    f"{self._storage.url}/{_folder(name)} exists",
                    hint="name another folder, or remove it",
                )

    def __enter__(self) -> TableFolders:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None:
            with contextlib.suppress(OSError):  # the first error is the cause
                for name in self._names:
                    self._remove_all_but(name, frozenset())
                    self._storage.remove_empty_directory(_folder(name))

    def commit(self, written: Mapping[str, Iterable[SnapshotFile]]) -> None:
        """Mark each table's folder as whole, without files of attempts that came to nothing.

        Raises RequestError if a file isn't where this process reads.
        """
        for name in self._names:
            kept = frozenset(file.path for file in written.get(name, ()))
            self._remove_all_but(name, kept)
            for path in kept:
                self._check(path)
            self._storage.replace(f"{_folder(name)}/{_SUCCESS}", b"")

    def _check(self, path: str) -> None:
        try:
            self._storage.open(path).close()
        except FileNotFoundError:
            raise RequestError(
                f"{self._storage.url}/{path}: Spark's workers wrote it, and it isn't there",
                hint="name a URL that workers and this process share, such as s3://bucket/folder",
            ) from None

    def _remove_all_but(self, name: str, kept: frozenset[str]) -> None:
        for each in self._storage.names(_folder(name)):
            if (path := f"{_folder(name)}/{each}") not in kept:
                self._storage.remove(path)


def _folder(name: str) -> str:
    return file_name(name, "parquet")
