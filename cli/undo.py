"""sluice undo: take past transactions back, as SQL or in TiDB."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import IO, TYPE_CHECKING, Any

import click

from sluice.cli._moments import MOMENT, MOMENT_FORMS, empty_range
from sluice.cli._settings import config_option, settings_of
from sluice.cli._suggestions import Choice

if TYPE_CHECKING:
    from sluice.etl.history.find import SearchQuery
    from sluice.etl.history.history_log import HistoryLog
    from sluice.etl.history.undo import DryRun, InverseChanges, PastChanges, RowPreview
    from sluice.etl.settings import Settings


class _Commit(click.ParamType[int]):
    """A transaction's commit ts. `before:TSO`, the moment before it, names the same transaction."""

    name = "tso"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        digits = value.removeprefix("before:").strip()
        if not digits.isdecimal():
            self.fail(f"invalid commit timestamp {value!r}; `sluice find` shows it", param, ctx)
        return int(digits)


@click.command("undo")
@click.argument("commit_ts", metavar="[COMMIT_TS]", type=_Commit(), required=False)
@click.option(
    "--start-ts", type=int, default=0, metavar="TSO",
    help="Which one, if several transactions share the commit ts.",
)  # fmt: skip
@click.option(
    "--since", type=MOMENT,
    help=f"In place of COMMIT_TS: all that was committed after this, as one: {MOMENT_FORMS}.",
)  # fmt: skip
@click.option("--until", type=MOMENT, help="With --since: through this, inclusive [to the end].")
@click.option(
    "--table", "globs", metavar="GLOB", multiple=True,
    help="Only changes of tables whose name then matches (schema.table, * and ?); may be repeated"
    " [all].",
)  # fmt: skip
@click.option(
    "--kind", "kinds", multiple=True, type=Choice(("insert", "update", "delete")),
    help="With --since: only these kinds of changes; may be repeated [all].",
)  # fmt: skip
@click.option(
    "--where", metavar="CONDITION", default="",
    help="With --since: only row changes that match, as in `sluice find`.",
)  # fmt: skip
@click.option(
    "--min-rows", type=click.IntRange(1), default=1, metavar="N",
    help="With --since: only transactions with at least N of these row changes, such as the"
    " batches of a script among single rows of an application.",
)  # fmt: skip
@click.option(
    "--dry-run", is_flag=True,
    help="Show rows before and after, compare each one with the downstream replica, and list"
    " conflicts. Nothing is written.",
)  # fmt: skip
@click.option(
    "--rows", "shown", type=click.IntRange(0, 1_000), default=5, show_default=True,
    help="With --dry-run: how many rows of a table are shown before and after.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="With --dry-run, for scripts: a JSON object.")
@click.option(
    "--apply", "applies", is_flag=True,
    help="Run it in TiDB at [upstream] sql-host, in one transaction that commits only if no row was"
    " changed since.",
)  # fmt: skip
@click.option(
    "--leave-conflicts", "leaves", is_flag=True,
    help="Leave rows that the dry run finds changed since as they are, and take back all others.",
)  # fmt: skip
@click.option(
    "--user", metavar="NAME", help="With --apply: the user who may write in TiDB [sql-user]."
)
@click.option(
    "--password-env", metavar="NAME",
    help="With --apply: the environment variable with that user's password [sql-password-env].",
)  # fmt: skip
@click.option(
    "--output", type=click.File("wb"), default="-", help="File for the SQL [standard output]."
)
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    commit_ts: int | None,
    start_ts: int,
    since: int | None,
    until: int | None,
    globs: tuple[str, ...],
    kinds: tuple[str, ...],
    where: str,
    min_rows: int,
    shown: int,
    user: str | None,
    password_env: str | None,
    output: IO[bytes],
    config: str | None,
    *,
    dry_run: bool,
    as_json: bool,
    applies: bool,
    leaves: bool,
) -> int:
    """Take back the transaction committed at COMMIT_TS, or row changes of many, as one change.

    It comes from the old values in the binlog. `sluice find` finds the timestamp, or with the same
    --since, --until, --table, --kind, --where and --min-rows what a range holds. before:COMMIT_TS,
    as restore and as-of take it, is the same transaction. A row changed several times is handled
    once.

    Run the SQL in TiDB, the upstream, or let --apply do it. Replication brings the result
    downstream; in the downstream alone the SQL would make the replica differ from TiDB. Each
    statement changes a row only if it is still as the changes left it. The script counts the rows
    and ends before COMMIT: compare the counts, then commit or roll back.

    --dry-run shows beforehand which rows have changed since. Exit code 1 if there are any, unless
    --leave-conflicts leaves them out.
    """
    from sluice.etl.history import undo
    from sluice.etl.history.find import SearchQuery
    from sluice.etl.history.history_log import HistoryLog

    if (commit_ts is None) == (since is None):
        raise click.UsageError("name one transaction with COMMIT_TS, or many with --since", ctx)
    if since is None and (until is not None or kinds or where or min_rows > 1):
        raise click.UsageError("--until, --kind, --where and --min-rows go with --since", ctx)
    if since is not None and start_ts:
        raise click.UsageError("--start-ts goes with COMMIT_TS", ctx)
    if dry_run and applies:
        raise click.UsageError("--dry-run writes nothing: leave it or --apply out", ctx)
    settings = settings_of(ctx, config)
    past = HistoryLog.open(settings)
    if commit_ts is not None:
        with past.held("`sluice undo`", commit_ts - 1):
            changes = undo.read_transaction(past, commit_ts, globs, start_ts)
    else:
        end = past.last if until is None else until
        query = SearchQuery(since or 0, end, globs, kinds, where, min_rows=min_rows)
        changes = _range(past, query, until)
        for note in changes.notes:
            click.echo(note, err=True)
    reverses = [undo.invert_changes(table) for table in changes.tables]
    if dry_run:
        if leaves:
            done, kept = undo.leave_conflicts(settings, changes, reverses)
        else:
            done, kept = undo.dry_run(settings, changes, reverses), reverses
        rows = [row for reverse in kept for row in undo.preview(reverse, shown)]
        if as_json:
            click.echo(json.dumps(asdict(done) | {"preview": [asdict(row) for row in rows]}))
        else:
            _say(done, rows, sum(reverse.rows for reverse in kept), leaves=leaves)
        return 1 if done.count and not leaves else 0
    if leaves:
        done, reverses = undo.leave_conflicts(settings, changes, reverses)
        _say_conflicts(done, err=True)
        if not any(reverse.rows for reverse in reverses):
            click.echo("all of these rows were changed since: nothing to take back", err=True)
            return 1
    if applies:
        _apply(settings, changes, reverses, user, password_env)
        return 0
    for line in undo.script(changes, undo.for_upstream(reverses)):
        output.write(line + b"\n")
    name = str(getattr(output, "name", "-"))
    if name not in ("-", "<stdout>"):
        click.echo(
            f"{name}: run it in TiDB, compare the two counts, then COMMIT or ROLLBACK;"
            " --apply in place of --output does all of it",
            err=True,
        )
    return 0


def _range(past: HistoryLog, query: SearchQuery, until: int | None) -> PastChanges:
    from sluice.etl.history import undo
    from sluice.etl.history.find import check_table_globs
    from sluice.tidb import tso

    if query.since >= query.until:
        raise empty_range(query.since, until, past.last)
    for name, ts in (("--since", query.since), ("--until", query.until)):
        if not past.first <= ts <= past.last:
            raise undo.UndoError(
                f"{name} {tso.text(ts)}: what was committed after {tso.text(past.first)} through"
                f" {tso.text(past.last)} can be taken back"
            )
    check_table_globs(past, query.tables)
    with past.held("`sluice undo`", query.since):
        return undo.read_range(past, query)


def _apply(
    settings: Settings,
    changes: PastChanges,
    reverses: Sequence[InverseChanges],
    user: str | None,
    password_env: str | None,
) -> None:
    from sluice.etl.copy.tidb_session import TidbAddress
    from sluice.etl.display_units import counted
    from sluice.etl.history import undo

    given: dict[str, Any] = {"user": user, "password_env": password_env}
    address = replace(
        TidbAddress.from_settings(settings.upstream),
        **{name: value for name, value in given.items() if value is not None},
    )
    rows = undo.apply_script(address, undo.script(changes, undo.for_upstream(reverses)))
    state = "is what it was" if rows == 1 else "are what they were"
    click.echo(
        f"{address.user}@{address.shown}: {counted(rows, 'row')} {state}, in one transaction."
        " `sluice status` shows when the replica has it, `sluice find --since 5m` its commit ts"
    )


_SIGNS = {"inserts": "+", "deletes": "-", "updates": "~"}


def _say_conflicts(done: DryRun, *, err: bool = False) -> None:
    for conflict in done.conflicts:
        click.echo(f"conflict  {conflict.table} [{conflict.row}] {conflict.why}", err=err)
    if done.count > len(done.conflicts):
        click.echo(f"          and {done.count - len(done.conflicts):,} more", err=err)


def _say(done: DryRun, rows: Sequence[RowPreview], changed: int, *, leaves: bool) -> None:
    """Print the first `rows` of `changed` ones, and the conflicts."""
    from sluice.etl.display_units import counted
    from sluice.tidb import tso

    for row in rows:
        images = " -> ".join(f"[{image}]" for image in (row.now, row.then) if image)
        click.echo(f"{_SIGNS[row.effect]} {row.table} {images}")
    if changed > len(rows):
        click.echo(f"  and {counted(changed - len(rows), 'row')} more; --rows shows more of them")
    _say_conflicts(done)
    for text in done.unchecked:
        click.echo(f"unchecked {text}")
    click.echo(
        f"{counted(done.rows, 'row')} looked at in the replica, as of {tso.text(done.checkpoint)}:"
        f" {counted(done.count, 'conflict') if done.count else 'no conflicts'}"
    )
    if done.rows and done.back == done.rows:
        click.echo("all of them are as they were: nothing is left to take back")
    elif done.count and not leaves:
        click.echo(
            "the same command with --leave-conflicts leaves these rows as they are, and takes back"
            " all others; without it --apply changes nothing"
        )
    else:
        if done.count:
            click.echo(f"{counted(changed, 'row')} can be taken back, the conflicts stay")
        click.echo(
            "the same command without --dry-run prints the SQL, with --apply it runs it in TiDB"
        )
