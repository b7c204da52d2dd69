"""sluice snapshot: manage snapshots of all tables in the archive."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from sluice.cli._job_run import run_command
from sluice.cli._settings import config_option, settings_of
from sluice.etl.display_units import counted, format_size

if TYPE_CHECKING:
    from sluice.etl.settings import Settings
    from sluice.relay.archive import ArchiveSnapshot, SnapshotStore


@click.group("snapshot")
def command() -> None:
    """Manage snapshots of all tables in the archive, from which restores start."""


@command.command("make")
@click.option(
    "--from", "source", metavar="PLACE",
    help="Source: downstream, as of its checkpoint, without load on TiDB and without a pause;"
    " tidb, that is TiDB at [upstream] sql-host; archive, the newest snapshot rolled forward"
    " without a database; or the path or URL (file, s3, gs, az; without credentials) of a"
    " folder that Dumpling wrote [[archive] snapshots-from, else auto: downstream if it equals the"
    " upstream, else tidb].",
)  # fmt: skip
@click.option(
    "--full",
    is_flag=True,
    help="Read every table, including those unchanged since the newest snapshot.",
)
@click.option(
    "--plan", "plan_only", is_flag=True, help="Only show what would be done; nothing is written."
)
@click.option(
    "--no-escape-backslash", "escape_backslash", is_flag=True, flag_value=False, default=True,
    help="Dumpling was given --escape-backslash=false.",
)  # fmt: skip
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the plan or the result as JSON to standard output.",
)
@config_option
@click.pass_context
def make(
    ctx: click.Context,
    /,
    source: str | None,
    config: str | None,
    *,
    full: bool,
    plan_only: bool,
    escape_backslash: bool,
    as_json: bool,
) -> int:
    """Make a snapshot.

    Tables unchanged since the newest snapshot are referred to, and not copied again.

    This is a job: `sluice jobs` shows its progress, pauses or cancels it from any machine. After a
    kill, `sluice jobs resume` continues it; a snapshot from the downstream starts over, at a later
    checkpoint.
    """
    said = {"source": source, "full": full, "escape_backslash": escape_backslash}
    return run_command(ctx, config, "snapshot", said, plan_only=plan_only, as_json=as_json)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="For scripts: a JSON object a line.")
@config_option
@click.pass_context
def list_(ctx: click.Context, config: str | None, *, as_json: bool) -> None:
    """List all snapshots, the newest last, and the one being made."""
    snapshots = _snapshots(settings_of(ctx, config))
    found = snapshots.all()
    for snapshot in found:
        click.echo(json.dumps(_document(snapshot)) if as_json else "\n".join(_lines(snapshot)))
    if as_json:
        return
    if not found:
        click.echo("there are no snapshots")
    known = {snapshot.id for snapshot in found}
    for name in snapshots.ids():
        if name not in known and (note := snapshots.pending(name)) is not None:
            click.echo(f"{name} is being made by the job {note.job}")


@command.command("check")
@click.argument("names", metavar="SNAPSHOT...", nargs=-1)
@config_option
@click.pass_context
def check(ctx: click.Context, names: tuple[str, ...], config: str | None) -> int:
    """Read every file of these snapshots [all], and compare it with its checksum.

    Exit code 1 if one is damaged.
    """
    from sluice.etl.history.snapshots import check_snapshot

    settings = settings_of(ctx, config)
    snapshots = _snapshots(settings)
    wrong = 0
    for snapshot in [snapshots.get(name) for name in names] or snapshots.all():
        faults = check_snapshot(settings, snapshot)
        wrong += len(faults)
        for fault in faults:
            click.echo(fault, err=True)
        click.echo(
            f"{snapshot.id}: {'damaged' if faults else 'whole'}, {counted(snapshot.rows, 'row')},"
            f" {format_size(snapshot.file_bytes)}"
        )
    return 1 if wrong else 0


@command.command("forget")
@click.argument("names", metavar="SNAPSHOT...", nargs=-1, required=True)
@config_option
@click.pass_context
def forget(ctx: click.Context, names: tuple[str, ...], config: str | None) -> None:
    """Remove snapshots.

    Files that other snapshots refer to stay until these are removed. `[archive] snapshots-keep`
    removes old ones automatically.
    """
    from sluice.etl.history.snapshots import forget_snapshot

    settings = settings_of(ctx, config)
    for name in names:
        forget_snapshot(settings, name)
        click.echo(f"forgot {name}")


def _snapshots(settings: Settings) -> SnapshotStore:
    from sluice.relay.archive import Archive

    return Archive.open(settings.archive_url).snapshots


def _document(snapshot: ArchiveSnapshot) -> dict[str, object]:
    return {
        "snapshot": snapshot.id,
        "ts": snapshot.ts,
        "schema_version": snapshot.schema_version,
        "made_ms": snapshot.made_ms,
        "made_from": snapshot.made_from,
        "tables": len(snapshot.tables),
        "rows": snapshot.rows,
        "file_bytes": snapshot.file_bytes,
        "row_bytes": snapshot.row_bytes,
        "refers_to": list(snapshot.refers_to),
    }


def _lines(snapshot: ArchiveSnapshot) -> list[str]:
    from sluice.relay.jobs.spec import format_ms
    from sluice.tidb import tso

    lines = [
        f"{snapshot.id}",
        f"    as of {tso.text(snapshot.ts)}, from {snapshot.made_from},"
        f" made {format_ms(snapshot.made_ms)}",
        f"    {counted(len(snapshot.tables), 'table')}, {counted(snapshot.rows, 'row')},"
        f" {format_size(snapshot.file_bytes)}",
    ]
    return (
        [*lines, f"    refers to {', '.join(snapshot.refers_to)}"] if snapshot.refers_to else lines
    )
