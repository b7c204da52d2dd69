"""sluice archive: fill, maintain and check the archive."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from sluice.cli._moments import MOMENT, MOMENT_FORMS
from sluice.cli._settings import config_option, settings_of
from sluice.cli._stack import signals_as_interrupt
from sluice.etl.display_units import counted, format_size

if TYPE_CHECKING:
    from sluice.etl.history.archive import ArchivedSegment, CheckSummary

_JSON = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object on standard output, progress on standard error.",
)


@click.group("archive")
def command() -> None:
    """Fill, compact, clean up and check the archive, and show what can be restored from it.

    The DAG `archive` does all but `check` and `export` automatically.
    """


@command.command("status")
@click.option(
    "--tables",
    "every_table",
    is_flag=True,
    help="Show every table [only those whose range differs].",
)
@click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON object.")
@config_option
@click.pass_context
def status(ctx: click.Context, *, every_table: bool, config: str | None, as_json: bool) -> int:
    """Show the restorable time range per table, gaps and their cause, disk usage and its forecast.

    Exit code 1 if there is a gap or damage, a table that can't be restored now, or if a task of the
    DAG `archive` has stopped.
    """
    from sluice.cli._archive_status import lines
    from sluice.etl.history.retain import archive_status

    found = archive_status(settings_of(ctx, config))
    click.echo(
        json.dumps(found.to_json(), ensure_ascii=False)
        if as_json
        else "\n".join(lines(found, every_table=every_table))
    )
    return 1 if found.holes or found.faults or found.failures or found.unknown else 0


@command.command("run")
@click.option(
    "--until", type=MOMENT,
    help=f"Through this at least: {MOMENT_FORMS} [all that is landed now].",
)  # fmt: skip
@_JSON
@config_option
@click.pass_context
def run(ctx: click.Context, *, until: int | None, config: str | None, as_json: bool) -> None:
    """Archive what is landed and not yet archived."""
    from sluice.etl.history.archive import archive_through
    from sluice.tidb import tso

    settings = settings_of(ctx, config)
    with signals_as_interrupt():
        done = archive_through(settings, until, on_segment=_reporter("archived"))
    if as_json:
        click.echo(json.dumps(done.as_dict(), indent=1))
    elif not done.hi:
        click.echo("nothing is landed yet")
    else:
        click.echo(
            f"archived through {tso.text(done.hi)}: {counted(done.segments, 'new segment')},"
            f" {counted(done.transactions, 'transaction')}, {counted(done.changes, 'row change')};"
            f" {format_size(done.read_bytes)} of the relay log became"
            f" {format_size(done.log_bytes)}, and {format_size(done.lake_bytes)} of the lake"
        )


@command.command("compact")
@_JSON
@config_option
@click.pass_context
def compact(ctx: click.Context, *, config: str | None, as_json: bool) -> None:
    """Merge small archive files into large ones, and remove files no longer needed."""
    from sluice.etl.history.archive import compact

    settings = settings_of(ctx, config)
    with signals_as_interrupt():
        done = compact(settings, on_segment=_reporter("compacted"))
    if as_json:
        click.echo(json.dumps(done.as_dict(), indent=1))
        return
    click.echo(
        f"{counted(done.segments, 'segment')} became {done.into}, {format_size(done.bytes)} were"
        f" written; {counted(done.removed, 'file')} removed as no longer needed"
    )


@command.command("retain")
@click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON object.")
@config_option
@click.pass_context
def retain(ctx: click.Context, *, config: str | None, as_json: bool) -> None:
    """Remove what [relay] keep, [archive] keep and snapshots-keep no longer require.

    The DAG `archive` does so automatically.
    """
    from sluice.etl.history.retain import retain

    with signals_as_interrupt():
        done = retain(settings_of(ctx, config))
    if as_json:
        click.echo(json.dumps(done.as_dict()))
        return
    click.echo(
        f"removed {counted(done.windows, 'window')} of the relay log,"
        f" {counted(len(done.snapshots), 'snapshot')} and {counted(done.segments, 'segment')} with"
        f" {format_size(done.bytes)}"
    )
    for what, why in (("relay log", done.relay_held_by), ("archive", done.archive_held_by)):
        if why:
            click.echo(f"the oldest part of the {what} stays because of {why}")


@command.command("check")
@click.option(
    "--since", type=MOMENT,
    help=f"Only what was committed after this: {MOMENT_FORMS} [from the beginning].",
)  # fmt: skip
@click.option("--until", type=MOMENT, help="And through this [to the end].")
@_JSON
@config_option
@click.pass_context
def check(
    ctx: click.Context, *, since: int | None, until: int | None, config: str | None, as_json: bool
) -> int:
    """Read every file of the archive and compare it with its checksums.

    Exit code 1 if anything is damaged.
    """
    from sluice.etl.history.archive import check
    from sluice.tidb import tso

    def progress(far: CheckSummary) -> None:
        if far.segments % 20 == 0:
            click.echo(
                f"read {counted(far.segments, 'segment')}, {format_size(far.bytes)}, through"
                f" {tso.text(far.hi)}",
                err=True,
            )

    found = check(settings_of(ctx, config), since or 0, until, on_segment=progress)
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=1))
        return 1 if found.problems else 0
    for problem in found.problems:
        click.echo(f"wrong  {problem}")
    if not found.segments:
        click.echo("the archive holds nothing there")
        return 1 if found.problems else 0
    click.echo(
        f"read {counted(found.segments, 'segment')} from {tso.text(found.lo)} to"
        f" {tso.text(found.hi)}: {counted(found.files, 'file')}, {format_size(found.bytes)},"
        f" {counted(found.changes, 'row change')}, {counted(len(found.problems), 'problem')}"
    )
    return 1 if found.problems else 0


@command.command("files")
@click.argument("table", metavar="SCHEMA.TABLE")
@click.option(
    "--since", type=MOMENT,
    help=f"Only files that may hold what was committed after this: {MOMENT_FORMS}.",
)  # fmt: skip
@click.option("--until", type=MOMENT, help="And through this.")
@_JSON
@config_option
@click.pass_context
def files(
    ctx: click.Context,
    *,
    table: str,
    since: int | None,
    until: int | None,
    config: str | None,
    as_json: bool,
) -> int:
    """List the URLs of the lake's current files of a table, one per line.

    Each change is in exactly one of them. Exit code 1 if there are none.
    """
    from sluice.cli._archive_lake import lake_files, lake_tables
    from sluice.tidb.table_name import suggestion

    settings = settings_of(ctx, config)
    found = lake_files(settings, table, since, until)
    if as_json:
        click.echo(json.dumps([file.to_json() for file in found], indent=1))
    else:
        root = settings.archive_url.partition("?")[0].rstrip("/")
        for file in found:
            click.echo(f"{root}/{file.path}")
    if not found:
        known = lake_tables(settings)
        where = "in this range" if table in known else "in the archive"
        hint = "" if table in known else suggestion(table, known)
        click.echo(f"there is no file of {table} {where}{hint}", err=True)
    return 0 if found else 1


@command.command("export")
@click.argument("table", metavar="SCHEMA.TABLE")
@click.option("--as", "name", metavar="NAMESPACE.TABLE", help="Name in the catalog [the same].")
@click.option(
    "--catalog", default="default", show_default=True, help="The catalog's name for pyiceberg."
)
@click.option(
    "--property",
    "properties",
    metavar="KEY=VALUE",
    multiple=True,
    help="Property of the catalog: type, uri, warehouse and so on.",
)
@config_option
@click.pass_context
def export(
    ctx: click.Context,
    *,
    table: str,
    name: str | None,
    catalog: str,
    properties: tuple[str, ...],
    config: str | None,
) -> None:
    """Register the lake's files of a table in a table of an Iceberg catalog, without copying them.

    Run it again after each compaction: one commit removes replaced files and adds new ones.
    """
    from sluice.cli._archive_lake import export

    export(settings_of(ctx, config), table, name, (catalog, properties))


def _reporter(what: str) -> Any:
    from sluice.tidb import tso

    def report(segment: ArchivedSegment) -> None:
        click.echo(
            f"{what} {counted(segment.changes, 'row change')} through {tso.text(segment.hi)}",
            err=True,
        )

    return report
