"""sluice find: search the past for the moment before an accident."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from sluice.cli._moments import MOMENT, MOMENT_FORMS, empty_range
from sluice.cli._settings import config_option, pipeline_words, settings_of
from sluice.cli._suggestions import Choice
from sluice.etl.display_units import counted, format_size

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from sluice.etl.history.find import (
        FoundDdl,
        FoundGroup,
        FoundTransaction,
        SearchQuery,
        SearchResults,
        TableRows,
    )

_PROGRESS_INTERVAL_S = 2.0
_MAX_STATEMENT_CHARS = 160
_UNDONE = ("insert", "update", "delete")
"""The kinds that `sluice undo` takes back; DDL it doesn't."""


@click.command("find")
@click.option(
    "--table", "globs", metavar="GLOB", multiple=True,
    help="Only tables whose name then matches (schema.table, * and ?); may be repeated [all].",
)  # fmt: skip
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=Choice(("insert", "update", "delete", "ddl", "drop")),
    help="Only these kinds; may be repeated [all]. drop: DDL that removes rows, such as DROP and"
    " TRUNCATE TABLE.",
)
@click.option(
    "--since", type=MOMENT,
    help=f"Only what was committed after this: {MOMENT_FORMS} [from the beginning].",
)  # fmt: skip
@click.option("--until", type=MOMENT, help="Through this, inclusive [to the end].")
@click.option(
    "--where",
    metavar="CONDITION",
    default="",
    help='Only row changes that match, such as "id = 7" or "old.status = \'paid\' AND new.status <>'
    " 'paid'\". A plain column matches before or after the change; old. and new. select one.",
)
@click.option(
    "--min-rows", type=click.IntRange(1), default=1, metavar="N",
    help="Only transactions with at least N of these row changes, such as the batches of a script"
    " among single rows of an application.",
)  # fmt: skip
@click.option(
    "--sort", type=Choice(("newest", "time", "size")),
    help="newest: newest first; time: oldest first; size: most rows first [newest; with --group"
    " size].",
)  # fmt: skip
@click.option(
    "--group", "group", multiple=True, type=Choice(("minute", "table", "shape")),
    help="List groups of transactions instead: by minute, by table, by shape, that is which kinds"
    " of changes of which tables a transaction makes. May be repeated.",
)  # fmt: skip
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=50,
    show_default=True,
    help="Maximum number of transactions, or of groups.",
)
@click.option(
    "--zone",
    metavar="ZONE",
    default="UTC",
    show_default=True,
    help="Time zone of the times shown, such as Europe/Berlin.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="For scripts: a JSON object per line, the last one with counts.",
)
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    globs: tuple[str, ...],
    kinds: tuple[str, ...],
    since: int | None,
    until: int | None,
    where: str,
    min_rows: int,
    sort: Any,
    group: Any,
    limit: int,
    zone: str,
    config: str | None,
    *,
    as_json: bool,
) -> None:
    """List past transactions and DDL: their commit times, and the rows and tables they changed.

    It searches the archive and the relay log, and needs neither TiDB nor the downstream. Use the
    commit timestamp it prints to show the transaction (`sluice relay show`), to take it back
    (`sluice undo`), or to restore the moment just before it.
    """
    from sluice.etl.history.find import SearchQuery, check_table_globs, first_groups, search
    from sluice.etl.history.history_log import HistoryLog

    settings = settings_of(ctx, config)
    shown_zone = _zone(zone)
    past = HistoryLog.open(settings)
    begin = past.first if since is None else since
    end = past.last if until is None else until
    if begin >= end:
        raise empty_range(begin, until, past.last)
    order: Any = sort or ("size" if group else "newest")
    query = SearchQuery(
        begin, end, globs, kinds, where, order, limit, group=group, min_rows=min_rows
    )
    found = search(
        settings, query, on_progress=_Progress(max(begin, past.first), min(end, past.last))
    )
    groups = first_groups(found.groups, query)
    if not (found.transactions or found.ddls or groups):
        check_table_globs(past, globs)
    if as_json:
        for line in _json_lines(found, groups, query):
            click.echo(line)
        return
    hidden = 0 if globs or kinds else _leave_out_system_ddl(found)
    ddl_lines = [*_ddl_lines(found, shown_zone)]
    for text in (
        *(() if group else ddl_lines),
        *_group_lines(groups, shown_zone, query, pipeline_words(ctx, config)),
        *_transaction_lines(found, shown_zone),
        *(ddl_lines if group else ()),
    ):
        click.echo(text)
    if hidden:
        click.echo(f"{hidden:,} DDL of TiDB's own schemas: --kind ddl shows them", err=True)
    for text in _summary(found, query, past):
        click.echo(text, err=True)


class _Progress:
    """A line on the standard error every few seconds."""

    def __init__(self, begin: int, end: int) -> None:
        self._begin, self._end = begin, end
        self._logged_at = time.monotonic()

    def __call__(self, through: int, found: SearchResults) -> None:
        now = time.monotonic()
        if now - self._logged_at < _PROGRESS_INTERVAL_S:
            return
        self._logged_at = now
        from sluice.tidb import tso

        share = min(1.0, (through - self._begin) / max(1, self._end - self._begin))
        click.echo(
            f"{share:.0%}: looked through {tso.time_text(through)},"
            f" {format_size(found.counts['bytes'])},"
            f" {counted(found.counts['transactions'], 'transaction')}"
            " found",
            err=True,
        )


def _zone(name: str) -> ZoneInfo:
    from sluice.tidb.moments import MomentError, parse_zone

    try:
        return parse_zone(name)
    except MomentError as error:
        raise click.UsageError(f"--zone: {error}") from None


def _time(ts: int, zone: ZoneInfo, precision: str = "milliseconds") -> str:
    from sluice.tidb import tso

    return tso.to_datetime(ts).astimezone(zone).isoformat(" ", precision)


def _leave_out_system_ddl(found: SearchResults) -> int:
    """Remove DDL that is only about schemas of TiDB's own; return how many there were."""
    from sluice.tidb.history import SYSTEM_SCHEMAS
    from sluice.tidb.table_name import TableName

    kept = [
        ddl
        for ddl in found.ddls
        if not ddl.tables
        or any(TableName.parse(name).schema.casefold() not in SYSTEM_SCHEMAS for name in ddl.tables)
    ]
    hidden = len(found.ddls) - len(kept)
    found.ddls = kept
    found.counts["ddls"] -= hidden
    return hidden


def _ddl_lines(found: SearchResults, zone: ZoneInfo) -> Iterator[str]:
    for ddl in found.ddls:
        yield f"{ddl.commit_ts}  {_time(ddl.commit_ts, zone)}  {_ddl(ddl)}"


def _ddl(ddl: FoundDdl) -> str:
    text = (
        ddl.statement
        if len(ddl.statement) <= _MAX_STATEMENT_CHARS
        else f"{ddl.statement[:_MAX_STATEMENT_CHARS]}…"
    )
    return f"{ddl.kind}{', rows are gone' if ddl.drops else ''}: {_printable(text)}"


def _printable(text: str) -> str:
    """Escape control characters for a terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda match: f"\\x{ord(match[0]):02x}", text)


def _transaction_lines(found: SearchResults, zone: ZoneInfo) -> Iterator[str]:
    times = Counter(each.commit_ts for each in found.transactions)
    times.update(each.commit_ts for each in found.ddls)
    for one in found.transactions:
        began = f", started at {one.start_ts}" if times[one.commit_ts] > 1 else ""
        yield f"{one.commit_ts}  {_time(one.commit_ts, zone)}  {_rows(one)}{began}"
        for rows in one.tables:
            yield f"    {_table(rows)}"


def _group_lines(
    groups: list[FoundGroup], zone: ZoneInfo, query: SearchQuery, pipeline: list[str]
) -> Iterator[str]:
    for one in groups:
        minute = _time(one.minute, zone, "minutes") if one.minute else ""
        name = "  ".join(filter(None, (minute, one.table, one.shape)))
        yield f"{_printable(name)}: {_row_counts(one)} in {_transactions(one.transactions)}"
        yield (
            f"    {one.first_ts}  {_time(one.first_ts, zone)} through"
            f" {one.last_ts}  {_time(one.last_ts, zone)}"
        )
        yield f"    {_undo_command([one], query, pipeline)}"
    if len(groups) > 1:
        yield f"{len(groups):,} groups as one:"
        yield f"    {_undo_command(groups, query, pipeline)}"


def _undo_command(groups: list[FoundGroup], query: SearchQuery, pipeline: list[str]) -> str:
    """Return the command that shows how the groups' changes are taken back.

    Of groups by minute or table these are exactly theirs. A shape is no option of `undo`: other
    changes between the first and the last one that the search wants are among them.
    """
    from sluice.tidb.table_name import exactly

    tables = dict.fromkeys(exactly(one.table) for one in groups if one.table)
    globs = query.tables if query.tables and len(groups) > 1 else tables or query.tables
    first, last = min(one.first_ts for one in groups), max(one.last_ts for one in groups)
    words = [*pipeline, "--since", f"before:{first}", "--until", str(last)]
    words += [word for glob in globs for word in ("--table", glob)]
    words += [word for kind in query.kinds if kind in _UNDONE for word in ("--kind", kind)]
    words += ["--where", query.where] if query.where else []
    words += ["--min-rows", str(query.min_rows)] if query.min_rows > 1 else []
    return f"sluice undo {shlex.join(words)} --dry-run"


def _transactions(count: int) -> str:
    return counted(count, "transaction")


def _rows(one: FoundTransaction) -> str:
    return counted(one.rows, "row")


def _row_counts(rows: TableRows | FoundGroup) -> str:
    counts = ((rows.inserts, "inserted"), (rows.updates, "updated"), (rows.deletes, "deleted"))
    return ", ".join(f"{count:,} {word}" for count, word in counts if count)


def _table(rows: TableRows) -> str:
    text = _row_counts(rows)
    more = "; …" if rows.inserts + rows.updates + rows.deletes > len(rows.keys) else ""
    return f"{_printable(rows.table)}: {text} ({_printable('; '.join(rows.keys))}{more})"


def _json_lines(
    found: SearchResults, groups: list[FoundGroup], query: SearchQuery
) -> Iterator[str]:
    from sluice.tidb import tso

    for kind, entries in (("ddl", found.ddls), ("transaction", found.transactions)):
        for one in entries:
            moment = tso.to_datetime(one.commit_ts).isoformat(timespec="milliseconds")
            yield json.dumps({kind: {"time": moment, **asdict(one)}}, ensure_ascii=False)
    for group in groups:
        yield json.dumps({"group": asdict(group)}, ensure_ascii=False)
    read = {"since": query.since, "until": query.until, "lacking": found.lacking}
    yield json.dumps({"counts": found.counts | read}, ensure_ascii=False)


def _summary(found: SearchResults, query: SearchQuery, past: Any) -> Iterator[str]:
    from sluice.tidb import tso

    counts = found.counts
    parts = [
        (
            f"{counted(counts['transactions'], 'transaction')}"
            f" ({counted(counts['inserts'], 'row')} inserted,"
            f" {counts['updates']:,} updated, {counts['deletes']:,} deleted)"
            if query.row_kinds
            else ""
        ),
        f"{counts['ddls']:,} DDL" if query.wants_ddl else "",
    ]
    yield (
        f"{' and '.join(part for part in parts if part)} after"
        f" {tso.time_text(max(query.since, past.first))} through"
        f" {tso.time_text(min(query.until, past.last))}"
    )
    shown, known = (
        (min(query.limit, len(found.groups)), len(found.groups))
        if query.group
        else (len(found.transactions), counts["transactions"])
    )
    left = max(known - shown, counts["ddls"] - len(found.ddls))
    if left:
        yield (
            f"{left:,} more aren't shown: --limit, --sort, or a narrower --since, --until, --table,"
            " --where, --min-rows"
        )
    yield from found.lacking_texts
    if query.since < past.first:
        yield (
            f"what was committed through {tso.time_text(past.first)} is kept no more, or never"
            " landed"
        )
    if query.until > past.last:
        yield f"what was committed after {tso.time_text(past.last)} hasn't landed yet"
    if found.transactions and sys.stdout.isatty():
        yield (
            "`sluice relay show COMMIT_TS --rows` shows a transaction's rows, `sluice undo"
            " COMMIT_TS` the SQL that takes it back, `sluice restore --until before:COMMIT_TS`"
            " restores the moment before it"
        )
    if query.group and found.groups and sys.stdout.isatty():
        yield (
            "the same options without --group show the transactions; --apply in place of --dry-run"
            " takes a group's changes back as one"
        )
