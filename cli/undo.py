"""sluice undo: print the SQL that takes back one transaction."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import IO, TYPE_CHECKING

import click

from sluice.cli._settings import config_option, settings_of

if TYPE_CHECKING:
    from sluice.etl.history.undo import DryRun


class _Commit(click.ParamType[int]):
    """A transaction's commit ts. `before:TSO`, the moment before it, names the same transaction."""

    name = "tso"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        digits = value.removeprefix("before:").strip()
        if not digits.isdecimal():
            self.fail(f"{value!r} is no commit timestamp; `sluice find` shows it", param, ctx)
        return int(digits)


@click.command("undo")
@click.argument("commit_ts", metavar="COMMIT_TS", type=_Commit())
@click.option(
    "--start-ts", type=int, default=0, metavar="TSO",
    help="Which one, if several transactions share the commit ts.",
)  # fmt: skip
@click.option(
    "--table", "globs", metavar="GLOB", multiple=True,
    help="Only changes of tables whose name matches (schema.table, * and ?); may be repeated"
    " [all].",
)  # fmt: skip
@click.option(
    "--dry-run", is_flag=True,
    help="Compare each row with the downstream replica, and list conflicts. Nothing is written.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="With --dry-run, for scripts: a JSON object.")
@click.option(
    "--output", type=click.File("wb"), default="-", help="File for the SQL [standard output]."
)
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    commit_ts: int,
    start_ts: int,
    globs: tuple[str, ...],
    output: IO[bytes],
    config: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Print the SQL that takes back the transaction committed at COMMIT_TS.

    It comes from the old values in the binlog. `sluice find` finds the timestamp. before:COMMIT_TS,
    as restore and as-of take it, is the same transaction.

    Run the SQL in TiDB, the upstream; Sluice writes nothing. Replication brings the result
    downstream; in the downstream alone the SQL would make the replica differ from TiDB. Each
    statement changes a row only if it is still as the transaction left it. The script counts the
    rows and ends before COMMIT: compare the counts, then commit or roll back.

    --dry-run shows beforehand which rows have changed since. Exit code 1 if there are any.
    """
    from sluice.etl.history import undo
    from sluice.etl.history.history_log import HistoryLog

    settings = settings_of(ctx, config)
    past = HistoryLog.open(settings)
    with past.held("`sluice undo`", commit_ts - 1):
        transaction = undo.read_transaction(past, commit_ts, globs, start_ts)
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
