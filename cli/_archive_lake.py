"""Implement `sluice archive files` and `sluice archive export`: lake files, and their catalog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sluice.etl.display_units import counted

if TYPE_CHECKING:
    from sluice.etl.settings import Settings
    from sluice.relay.archive import LakeFile


def lake_files(
    settings: Settings, table: str, since: int | None, until: int | None
) -> list[LakeFile]:
    """Return the files of a table (``schema.table``) that the archive names.

    Only those that may hold what was committed after `since` through `until`. Raises RequestError,
    relay errors.
    """
    from sluice.relay.archive import Archive
    from sluice.tidb.table_name import TableName

    wanted = TableName.parse(table)
    archive = Archive.open(settings.archive_url)
    first = archive.first()
    segments = archive.segments(max(since or 0, first.lo), until) if first is not None else ()
    return [
        file for segment in segments for file in segment.lake if (file.schema, file.table) == wanted
    ]


def lake_tables(settings: Settings) -> set[str]:
    """Return the names of the tables of which the archive has files. Raises relay errors."""
    from sluice.relay.archive import Archive
    from sluice.tidb.table_name import full_name

    archive = Archive.open(settings.archive_url)
    first = archive.first()
    segments = archive.segments(first.lo, None) if first is not None else ()
    return {full_name(file.schema, file.table) for each in segments for file in each.lake}


def export(
    settings: Settings, table: str, name: str | None, catalog: tuple[str, Sequence[str]]
) -> None:
    """Update a table in a catalog (its name, properties as ``key=value``); print the result."""
    from sluice.etl.history.clear_values import check_clear_values
    from sluice.etl.history.lake.iceberg import export_iceberg, open_catalog
    from sluice.relay.storage import open_storage
    from sluice.tidb.table_name import TableName

    check_clear_values(settings, "an Iceberg table")
    pairs = (text.partition("=") for text in catalog[1])
    opened = open_catalog(catalog[0], {key: value for key, _, value in pairs})
    files = lake_files(settings, table, None, None)
    for done in export_iceberg(
        open_storage(settings.archive_url), files, opened, name or TableName.parse(table)
    ):
        versions = ", ".join(map(str, sorted(done.versions)))
        click.echo(
            f"{done.table}: {counted(done.files, 'file')}, {done.added:,} added, {done.removed:,}"
            " removed;"
            f" schema version{'s' if len(done.versions) > 1 else ''} {versions}"
        )
