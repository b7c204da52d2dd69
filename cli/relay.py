"""sluice relay: show windows of the relay log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from sluice.cli._moments import MOMENT
from sluice.cli._settings import config_option, settings_of
from sluice.etl.display_units import counted

if TYPE_CHECKING:
    from sluice.etl.changes.row_change import RowChange

_MAX_VALUE_CHARS = 80


@click.group("relay")
def command() -> None:
    """Show what is in the relay log."""


@command.command("show")
@click.argument("ts", metavar="[MOMENT]", type=MOMENT, required=False)
@click.option("--last", type=click.IntRange(1), help="Number of newest windows to show [1].")
@click.option(
    "--rows",
    is_flag=True,
    help="Show row changes, decoded; with a commit timestamp those of that transaction.",
)
@click.option("--table", metavar="DB.TABLE", help="Only row changes of this table.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="For scripts: a JSON object a line, for windows and for row changes.",
)
@config_option
@click.pass_context
def show(
    ctx: click.Context,
    *,
    ts: int | None,
    last: int | None,
    rows: bool,
    table: str | None,
    as_json: bool,
    config: str | None,
) -> None:
    """Show a window: its parts, DDL statements and number of changes per table.

    The window is the one with the transaction committed at MOMENT, or else the one that begins at,
    or reaches over, MOMENT: a TSO, before:TSO, a time ago such as 20m, or a date-time such as
    'yesterday 14:00 Europe/Berlin' (UTC without a zone) [the newest].
    """
    from sluice.etl.history.clear_values import ClearValues
    from sluice.etl.operate import describe, find_window, latest_windows, row_changes
    from sluice.tidb.table_name import suggestion

    if ts is not None and last is not None:
        raise click.UsageError("give a timestamp or --last, not both")
    settings = settings_of(ctx, config)
    clear = ClearValues.of(settings, "relay show --rows") if rows or table else None
    relay = settings.open_relay()
    exact = False
    if ts is not None:
        window, exact = find_window(relay, ts)
        windows = [window]
    else:
        windows = latest_windows(relay, last or 1)
    if not windows:
        click.echo("no window is landed yet", err=as_json)
    known, shown = set[str](), 0
    for window in windows:
        found = describe(relay, window)
        known |= {str(entry["table"]) for entry in found["tables"]}
        if as_json:
            click.echo(json.dumps({"window": found}, ensure_ascii=False))
        else:
            click.echo("\n".join(_window_lines(found)))
        if clear is not None:
            clear.check_range(window.lo)
            for change in row_changes(relay, window, table, ts if exact else None):
                shown += 1
                click.echo(
                    json.dumps({"change": _as_json(change)}, ensure_ascii=False, default=_plain)
                    if as_json
                    else _change_text(change)
                )
    if table and windows and not shown:
        click.echo(f"no row of {table} is changed there{suggestion(table, known)}", err=True)


def _window_lines(window: dict[str, Any]) -> list[str]:
    lines = [
        f"window ({window['lo']}, {window['hi']}]  {window['from']} to {window['to']}",
        (
            f"  {counted(window['transactions'], 'transaction')},"
            f" {counted(window['changes'], 'row change')},"
            f" {len(window['ddls'])} DDL, schema version {window['schema_version']}"
        ),
        f"  record {window['record']}",
    ]
    lines += [
        f"  part {part['path']}: {counted(part['transactions'], 'transaction')},"
        f" {counted(part['rows'], 'row')},"
        f" {part['bytes']:,} bytes"
        for part in window["parts"]
    ]
    for ddl in window["ddls"]:
        query = " ".join(str(ddl["query"]).split())
        lines.append(
            f"  DDL at {ddl['commit_ts']}, job {ddl['job_id']}, type {ddl['type']}, schema"
            f" {ddl['schema_name']}: {query}"
        )
    lines += [
        f"  left out by decision: {entry['commit_ts']}: {entry['why']}"
        for entry in window["skipped"]
    ]
    for entry in window["tables"]:
        lines.append(
            f"  {entry['table']}: {counted(entry['transactions'], 'transaction')},"
            f" {counted(entry['insert'], 'insert')}, {counted(entry['update'], 'update')},"
            f" {counted(entry['delete'], 'delete')}"
        )
    return lines


def _change_text(change: RowChange) -> str:
    key = ", ".join(f"{name}={_shown(value)}" for name, value in change.key.items())
    head = f"{change.commit_ts} {change.position:>4} {change.kind:<6} {change.table} [{key}]"
    if change.fault:
        return f"{head} can't be decoded: {change.fault}"
    if change.old is not None and change.new is not None:
        changed = [name for name in change.new if change.old.get(name) != change.new[name]]
        return f"{head} " + (
            ", ".join(
                f"{name}: {_shown(change.old.get(name))} → {_shown(change.new[name])}"
                for name in changed
            )
            or "unchanged"
        )
    image = change.new if change.new is not None else change.old or {}
    return f"{head} " + ", ".join(f"{name}={_shown(value)}" for name, value in image.items())


def _shown(value: Any) -> str:
    """Format a value for a terminal: control characters escaped, long ones cut."""
    text = (
        "NULL"
        if value is None
        else repr(_plain(value) if isinstance(value, bytes | bytearray) else value)
    )
    return (
        text
        if len(text) <= _MAX_VALUE_CHARS
        else f"{text[:_MAX_VALUE_CHARS]}… ({len(text)} characters)"
    )


def _plain(value: Any) -> str:
    return (
        f"0x{bytes(value).hex()}"
        if isinstance(value, bytes | bytearray | memoryview)
        else str(value)
    )


def _as_json(change: RowChange) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(change)
