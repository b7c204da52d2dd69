"""sluice undo: the SQL that takes one transaction back."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import IO, TYPE_CHECKING

import click

from sluice.cli._settings import config_option, settings_of

if TYPE_CHECKING:
    from sluice.etl.history.undo import DryRun


@click.command("undo")
@click.argument("commit_ts", metavar="COMMIT_TS", type=int)
@click.option(
    "--table", "globs", metavar="GLOB", multiple=True,
    help="Only its changes of such tables (schema.table, * and ?); may be repeated [all that it changed].",
)  # fmt: skip
@click.option(
    "--dry-run", is_flag=True,
    help="Look at each row in the downstream replica, and say what would conflict. Nothing is written.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="With --dry-run, for scripts: a JSON object.")
@click.option("--output", type=click.File("wb"), default="-", help="Where the SQL goes [the standard output].")
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    commit_ts: int,
    globs: tuple[str, ...],
    output: IO[bytes],
    config: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Print the SQL that takes back the transaction committed at COMMIT_TS (`sluice find` tells it), from its old
    values in the binlog.

    It is for TiDB, the upstream, and you run it there: Sluice writes nothing. In the downstream alone it would make the
    replica differ from TiDB; what you do in TiDB comes downstream by replication. Each statement finds a row only if it
    is still as the transaction left it. The script counts the rows and ends before COMMIT: compare, then decide.

    --dry-run tells beforehand which rows were changed since. Exit code 1 if there are any.
    """
    import sluice.etl.history.undo as undo
    from sluice.etl.history.history_log import HistoryLog

    settings = settings_of(ctx, config)
    past = HistoryLog.open(settings)
    with past.held("`sluice undo`", commit_ts - 1):
        transaction = undo.read_transaction(past, commit_ts, globs)
    reverses = [undo.invert_changes(table) for table in transaction.tables]
    if dry_run:
        done = undo.dry_run(settings, transaction, reverses)
        if as_json:
            click.echo(json.dumps(asdict(done)))
        else:
            _say(done)
        return 1 if done.count else 0
    for line in undo.script(transaction, undo.for_upstream(reverses)):
        output.write(line + b"\n")
    return 0


def _say(done: DryRun) -> None:
    from sluice.tidb import tso

    for conflict in done.conflicts:
        click.echo(f"conflict  {conflict.table} [{conflict.row}] {conflict.why}")
    if done.count > len(done.conflicts):
        click.echo(f"          and {done.count - len(done.conflicts):,} more")
    for text in done.unchecked:
        click.echo(f"unchecked {text}")
    click.echo(
        f"{done.rows:,} rows looked at in the replica, as of {tso.text(done.checkpoint)}:"
        f" {done.count or 'no'} conflict{'s' if done.count != 1 else ''}"
    )
