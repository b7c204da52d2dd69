"""sluice ddl: skip or replace one DDL statement."""

from __future__ import annotations

from pathlib import Path

import click

from sluice.cli._settings import config_option, operator_name, settings_of

_WHY = click.option("--why", default="", help="Reason, kept with the override.")


@click.group("ddl")
def command() -> None:
    """Skip or replace one DDL statement downstream.

    The override takes effect at the next attempt; the schema history follows TiDB anyway.
    """


@command.command("skip")
@click.argument("which", metavar="COMMIT_TS|JOB_ID", type=int)
@_WHY
@config_option
@click.pass_context
def skip(ctx: click.Context, which: int, why: str, config: str | None) -> None:
    """Execute nothing downstream for this DDL. Bringing its effects there is up to you."""
    from sluice.etl import operate

    click.echo(operate.skip_ddl(settings_of(ctx, config), which, operator_name(), why))


@command.command("replace")
@click.argument("which", metavar="COMMIT_TS|JOB_ID", type=int)
@click.option(
    "--sql",
    "statements",
    multiple=True,
    help="Statements, separated by semicolons; may be repeated; may be empty.",
)
@click.option(
    "--file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with statements (UTF-8).",
)
@_WHY
@config_option
@click.pass_context
def replace(
    ctx: click.Context,
    which: int,
    statements: tuple[str, ...],
    file: Path | None,
    why: str,
    config: str | None,
) -> None:
    """Execute other statements instead of this DDL, each exactly once, in the DDL's schema."""
    from sluice.etl import operate
    from sluice.etl.changes.formats.sql_scripts import split_statements

    if not statements and file is None:
        raise click.UsageError("give --sql or --file (--sql '' for nothing at all)")
    texts = [*statements, *([file.read_text(encoding="utf-8")] if file else [])]
    sql = [statement for text in texts for statement in split_statements(text)]
    click.echo(operate.replace_ddl(settings_of(ctx, config), which, sql, operator_name(), why))
