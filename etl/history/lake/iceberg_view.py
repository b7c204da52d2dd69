"""Keep Iceberg tables of the lake up to date: a second, consistent view of the archive.

`[archive] iceberg` names a catalog as pyiceberg knows it. Each pass of the archive appends its
files in one snapshot, a compaction replaces files in one, and a file stays as long as any snapshot
of an Iceberg table names it. Snapshots expire by the table's property
`history.expire.max-snapshot-age-ms`, by default after five days. The archive's catalogue of days
stays what counts: while Iceberg's catalog is away the archive goes on, and removes no file.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

from sluice.errors import SluiceError
from sluice.etl.history.lake.iceberg import (
    ExportResult,
    IcebergError,
    export_iceberg,
    open_catalog,
)
from sluice.etl.settings import Settings
from sluice.relay.archive import Archive, LakeFile
from sluice.tidb.table_name import TableName

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

__all__ = ["IcebergView"]

log = logging.getLogger("sluice.archive")


class IcebergView:
    """The Iceberg tables of one archive. Methods raise IcebergError, relay errors."""

    def __init__(
        self,
        archive: Archive,
        catalog: Callable[[], Catalog],
        wants: Callable[[str, str], bool] = lambda schema, table: True,
    ) -> None:
        """Open `catalog` with each use. `wants`: whether a table (schema, name) is to be in it."""
        self._archive = archive
        self._open = catalog
        self._wants = wants
        self._current: dict[TableName, frozenset[str]] = {}

    @classmethod
    def from_settings(cls, settings: Settings) -> IcebergView | None:
        """Return the view that `[archive] iceberg` asks for, None without it."""
        name = settings.archive.iceberg
        if not name:
            return None
        archive = Archive.open(settings.archive_url)
        return cls(archive, lambda: open_catalog(name, {}), settings.rules.filters.wants_table)

    def update(self) -> list[ExportResult]:
        """Make the tables hold what the lake holds, each in one snapshot; expire old snapshots."""
        found: list[ExportResult] = []
        with _named_errors():
            catalog = self._open()
            for name, files in self._lake().items():
                paths = frozenset(file.path for file in files)
                if self._current.get(name) != paths:
                    storage = self._archive.storage
                    found += export_iceberg(storage, files, catalog, tuple(name), expires=True)
                    self._current[name] = paths
        return found

    def update_or_log(self) -> None:
        """Update; the archive's work doesn't wait for a catalog that is away."""
        try:
            for done in self.update():
                log.info(
                    "iceberg table=%s added=%d removed=%d", done.table, done.added, done.removed
                )
        except IcebergError as error:
            log.error("the Iceberg tables aren't up to date: %s; %s", error, error.hint)

    def named_files(self) -> frozenset[str]:
        """Return the paths below the archive of the files that some Iceberg snapshot names.

        Only those that the archive would remove are looked for.
        """
        old = {
            file.path
            for day in self._archive.catalogue.days()
            for file in self._archive.catalogue.load(day).old
            if file.path.startswith("lake/")
        }
        # A long name is cut in its folder, so its namespace is unknown: such files stay.
        found = {path for path in old if "~" in path}
        root = f"{self._archive.storage.url.partition('?')[0].rstrip('/')}/"
        schemas = sorted({_schema(path) for path in old - found})
        if schemas:
            with _named_errors():
                catalog = self._open()
                found |= {
                    path.removeprefix(root)
                    for schema in schemas
                    for path in _paths_named(catalog, schema)
                    if path.startswith(root)
                }
        return frozenset(found & old)

    def _lake(self) -> dict[TableName, list[LakeFile]]:
        found: dict[TableName, list[LakeFile]] = {}
        first = self._archive.first()
        for segment in self._archive.segments(first.lo) if first is not None else ():
            for file in segment.lake:
                if self._wants(file.schema, file.table):
                    found.setdefault(TableName(file.schema, file.table), []).append(file)
        return found


def _schema(path: str) -> str:
    """Return the database of a file's table: see `sluice.etl.history.lake._names.table_folder`."""
    return unquote(path.split("/")[1].partition(".")[0])


def _paths_named(catalog: Catalog, schema: str) -> Iterable[str]:
    if not catalog.namespace_exists((schema,)):
        return
    for identifier in catalog.list_tables((schema,)):
        files = catalog.load_table(identifier).inspect.all_data_files()
        yield from files["file_path"].to_pylist()


@contextlib.contextmanager
def _named_errors() -> Iterator[None]:
    """Raise IcebergError for what a catalog, or the store behind it, raises."""
    try:
        yield
    except SluiceError:
        raise
    except Exception as error:
        raise IcebergError(
            f"the Iceberg catalog: {type(error).__name__}: {error}",
            hint="see that the catalog of `[archive] iceberg` answers; the next pass tries again",
        ) from error
