"""Export a table of the lake as an Iceberg table that refers to the lake's own files.

Nothing is copied. Another export brings the Iceberg table up to date in one snapshot: an append of
the files that came since, or an overwrite that also takes those out that were compacted or removed
meanwhile. So no snapshot holds a change twice.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.errors import RequestError
from sluice.etl.history.lake._names import COMMIT_TIME
from sluice.relay.archive import LakeFile
from sluice.relay.storage import Storage

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction

__all__ = ["ExportResult", "IcebergError", "export_iceberg", "open_catalog"]


_MAX_AGE_PROPERTY = "history.expire.max-snapshot-age-ms"
_MAX_AGE_MS = 5 * 86_400_000
"""Iceberg's own default of that property."""


class IcebergError(RequestError):
    """The export isn't possible as requested."""


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A table of the catalog, and how many files it has now.

    Of these, and of those before, came and went.
    """

    table: str
    versions: tuple[int, ...]
    """The schema versions that lie in it."""
    files: int
    added: int
    removed: int


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open a catalog by pyiceberg's configuration file, environment, and these properties.

    Raises IcebergError.
    """
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise IcebergError(
            f"pyiceberg isn't there ({error})", hint="pip install 'sluice[iceberg]'"
        ) from None
    try:
        return load_catalog(name, **properties)
    except Exception as error:
        raise IcebergError(
            f"the Iceberg catalog {name!r}: {error}",
            hint="give its type, uri and warehouse by --property, or in ~/.pyiceberg.yaml",
        ) from error


def export_iceberg(
    storage: Storage,
    files: Sequence[LakeFile],
    catalog: Catalog,
    name: str | tuple[str, ...],
    *,
    expires: bool = False,
) -> list[ExportResult]:
    """Make tables of `catalog` hold exactly `files`, all of one table of the lake, in `storage`.

    `name` is ``namespace.table``, or its parts, which may hold dots; schema versions whose columns
    have another type than in the newest lie in a table of their own,
    ``namespace.table_v<version>``.

    `expires`: whether snapshots that are older than the table's property says are taken out.
    Raises IcebergError, and what the catalog raises.
    """
    by_version: dict[int, list[LakeFile]] = {}
    for file in files:
        by_version.setdefault(file.schema_version, []).append(file)
    if not by_version:
        raise IcebergError(
            f"the lake has no files for {name}",
            hint="`sluice archive run` archives what has landed",
        )
    parts = catalog.identifier_to_tuple(name)
    if len(parts) < 2:
        raise IcebergError(f"{name!r} has no namespace", hint="write namespace.table")
    catalog.create_namespace_if_not_exists(parts[:-1])
    found = []
    for target, (schema, versions) in _tables(storage, by_version, parts).items():
        held = [file for version in versions for file in by_version[version]]
        table = _table(catalog, target, schema)
        added, removed = _synchronize(table, storage, held)
        if expires:
            _expire(table)
        found.append(ExportResult(".".join(target), tuple(versions), len(held), added, removed))
    return found


def _tables(
    storage: Storage, by_version: Mapping[int, Sequence[LakeFile]], name: tuple[str, ...]
) -> dict[tuple[str, ...], tuple[pa.Schema, list[int]]]:
    """Return the tables to export, with their columns and the versions in each."""
    found: dict[tuple[str, ...], tuple[pa.Schema, list[int]]] = {}
    for version in sorted(by_version, reverse=True):
        with storage.open(by_version[version][-1].path) as opened:
            schema = pq.read_schema(opened)
        target = name
        if name in found and _types_conflict(found[name][0], schema):
            target = (*name[:-1], f"{name[-1]}_v{version}")
        before, versions = found.get(target, (pa.schema([]), []))
        found[target] = pa.unify_schemas([before, schema]), [*versions, version]
    return found


def _types_conflict(one: pa.Schema, other: pa.Schema) -> bool:
    return any(
        one.field(column).type != other.field(column).type
        for column in set(one.names) & set(other.names)
    )


def _table(catalog: Catalog, name: tuple[str, ...], schema: pa.Schema) -> Table:
    from pyiceberg.transforms import DayTransform

    # Iceberg's own day partitions: the lake's files hold one UTC day each
    wanted = pa.schema([entry.with_nullable(nullable=True) for entry in schema])
    if not catalog.table_exists(name):
        table = catalog.create_table(name, schema=wanted)
        with table.update_spec() as spec:
            spec.add_field(COMMIT_TIME, DayTransform(), "day")
        return catalog.load_table(name)
    table = catalog.load_table(name)
    with table.update_schema() as update:
        update.union_by_name(wanted)
    return catalog.load_table(name)


def _synchronize(table: Table, storage: Storage, files: Sequence[LakeFile]) -> tuple[int, int]:
    root = storage.url.partition("?")[0].rstrip("/")
    wanted = {f"{root}/{file.path}" for file in files}
    held: dict[str, Any] = {task.file.file_path: task.file for task in table.scan().plan_files()}
    strange = sorted(path for path in held if not path.startswith(f"{root}/lake/"))
    if strange:
        raise IcebergError(
            f"{table.name()} holds files that aren't of this lake: {strange[0]}",
            hint="give another name by --as, or drop the table from the catalog",
        )
    come, gone = sorted(wanted - held.keys()), sorted(held.keys() - wanted)
    if come or gone:
        with table.transaction() as transaction:
            _change_files(transaction, table, come, [held[path] for path in gone])
    return len(come), len(gone)


def _change_files(
    transaction: Transaction, table: Table, come: Sequence[str], gone: Sequence[Any]
) -> None:
    """Add and remove files in one snapshot.

    `Transaction.add_files` would make a snapshot of its own, in which compacted rows are doubled.
    """
    from pyiceberg.io.pyarrow import parquet_files_to_data_files
    from pyiceberg.table import TableProperties

    if transaction.table_metadata.name_mapping() is None:
        # the files have no field ids: columns are found by their names
        mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
    added = parquet_files_to_data_files(table.io, transaction.table_metadata, iter(come))
    update = transaction.update_snapshot()
    with update.overwrite() if gone else update.fast_append() as producer:
        for file in added:
            producer.append_data_file(file)
        for file in gone:
            producer.delete_data_file(file)


def _expire(table: Table) -> None:
    age_ms = int(table.properties.get(_MAX_AGE_PROPERTY, _MAX_AGE_MS))
    before_ms = time.time_ns() // 1_000_000 - age_ms
    current = table.current_snapshot()
    if any(each.timestamp_ms < before_ms and each != current for each in table.snapshots()):
        before = datetime.datetime.fromtimestamp(before_ms / 1000, datetime.UTC)
        table.maintenance.expire_snapshots().older_than(before).commit()
