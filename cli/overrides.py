"""sluice overrides: list and remove overrides of transactions and DDL."""

from __future__ import annotations

import json
from typing import Any

import click

from sluice.cli._settings import config_option, settings_of
from sluice.tidb import tso


@click.group("overrides")
def command() -> None:
    """List and remove overrides: transactions and DDL that operators skipped or replaced.

    `sluice txn` and `sluice ddl` make them.
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="For scripts: a JSON array.")
@config_option
@click.pass_context
def list_command(ctx: click.Context, *, as_json: bool, config: str | None) -> None:
    """List all overrides, and whether they were used."""
    from sluice.etl import operate

    found = operate.list_overrides(settings_of(ctx, config))
    if as_json:
        click.echo(json.dumps(found, indent=1, ensure_ascii=False))
    elif not found:
        click.echo("no overrides")
    for override in found if not as_json else ():
        for line in lines(override):
            click.echo(line)


@command.command("remove")
@click.argument("commit_ts", type=int)
@click.option(
    "--start-ts", type=int, default=0, metavar="TSO", help="Which one, if it names one of several."
)
@config_option
@click.pass_context
def remove(ctx: click.Context, commit_ts: int, start_ts: int, config: str | None) -> None:
    """Remove the override for COMMIT_TS, unless it was used: its effect stays."""
    from sluice.etl import operate

    click.echo(operate.remove_override(settings_of(ctx, config), commit_ts, start_ts))


def lines(override: dict[str, Any]) -> list[str]:
    """Return an override as text: one line, and one for each statement."""
    used = (
        f"used {tso.time_text(tso.compose(override['used_ms']))}"
        if override["used_ms"]
        else "not used yet"
    )
    by = f", by {override['by']}" if override["by"] else ""
    made = f" {tso.time_text(tso.compose(override['made_ms']))}" if override["made_ms"] else ""
    why = f", why: {override['why']}" if override["why"] else ""
    one = f" (started at {override['start_ts']})" if override.get("start_ts") else ""
    first = f"{tso.text(override['commit_ts'])}{one}  {override['action']}{by}{made}{why}; {used}"
    return [first, *(f"    {statement}" for statement in override["sql"])]
