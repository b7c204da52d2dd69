"""sluice as-of: show past tables, and differences between two moments."""

from __future__ import annotations

import contextlib
import itertools
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sluice.cli._moments import MOMENT
from sluice.cli._settings import config_option, in_upstreams_time, settings_of
from sluice.cli._suggestions import Choice
from sluice.etl.display_units import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.etl.history.as_of import TimeTravelQuery

_MAX_VALUE_CHARS = 48


@click.command("as-of")
@click.argument("first", metavar="T", type=MOMENT)
@click.argument("words", metavar="TABLE...", nargs=-1)
@click.option(
    "--diff",
    is_flag=True,
    help="T1 T2 TABLE...: show how the tables at T2 differ from those at T1.",
)
@click.option(
    "--format",
    "kind",
    type=Choice(("table", "csv", "json", "sql", "parquet")),
    default="table",
    show_default=True,
    help="table: aligned text. json: an object a row and line. sql: INSERT statements.",
)
@click.option("--json", "as_json", is_flag=True, help="For scripts: the same as --format json.")
@click.option(
    "--to", metavar="FOLDER|URL",
    help="Write one file per table into this folder [standard output]. With a URL Spark's workers"
    " write a folder of Parquet files per table.",
)  # fmt: skip
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="With --format table: maximum number of rows per table.",
)
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    first: int,
    words: tuple[str, ...],
    kind: str,
    to: str | None,
    limit: int,
    config: str | None,
    *,
    diff: bool,
    as_json: bool,
) -> None:
    """Show tables as of the moment T: with every transaction committed through T, and no later one.

    T is a TSO, a time ago such as 20m, a date-time such as '2026-11-16 09:00 Europe/Berlin' (UTC
    without a zone), or before:COMMIT_TS, the moment just before that transaction. Tables are named
    schema.table, as they were called at T; * and ? are wildcards.

    Spark computes them from the archive and the newest snapshot before T, through schema changes,
    without TiDB or the downstream. `sluice find` finds the moment.
    """
    from sluice.etl.history.as_of import differences_between, tables_as_of
    from sluice.tidb import tso

    url = to if to is not None and "://" in to else None
    folder = Path(to) if to is not None and url is None else None
    moments, names = words[:diff], words[diff:]
    if not names:
        raise click.UsageError(
            "name a table, such as shop.orders, behind the moment" + "s" * diff, ctx
        )
    if diff and kind == "sql":
        raise click.UsageError(
            "differences have no form as SQL; `sluice undo` takes transactions back", ctx
        )
    if as_json:
        if kind not in ("table", "json"):
            raise click.UsageError(f"--json and --format {kind}: leave one out", ctx)
        kind = "json"
    if url is not None and (diff or kind != "parquet"):
        raise click.UsageError("below a URL there are tables as Parquet: --format parquet", ctx)
    if kind == "parquet" and to is None:
        raise click.UsageError("Parquet files need a folder: --to FOLDER", ctx)
    settings = settings_of(ctx, config)
    others = (MOMENT.convert(moment, None, ctx) for moment in moments)
    at = [first, *(in_upstreams_time(settings, moment) for moment in others)]
    if diff and at[0] >= at[1]:
        raise click.UsageError(f"{tso.text(at[0])} is not before {tso.text(at[1])}", ctx)
    past = (
        differences_between(settings, at[0], at[1], names)
        if diff
        else tables_as_of(settings, at[0], names)
    )
    if url is not None:
        _say(past, at)
        for name, count in past.write_parquet(url).items():
            click.echo(f"{name}: {counted(count, 'row')} below {url}", err=True)
        return
    schemas = past.diff_schemas() if diff else past.row_schemas()
    if kind == "csv" and folder is None and len(schemas) > 1:
        raise click.UsageError(
            f"{counted(len(schemas), 'table')} as CSV need a folder: --to FOLDER", ctx
        )
    rows = past.differences() if diff else past.rows()
    _say(past, at)
    with contextlib.closing(rows):
        if kind == "table" and folder is None:
            _print(past, schemas, rows, limit, diff=diff)
            if not diff and sys.stdout.isatty():
                tables = shlex.join(names)
                click.echo(
                    f"`sluice restore --until {at[0]} --table {tables}` brings them into a database"
                    f" beside, `sluice as-of --diff {at[0]} 1m {tables}` shows what changed since",
                    err=True,
                )
        else:
            _write(past, schemas, rows, "csv" if kind == "table" else kind, folder)


def _say(past: TimeTravelQuery, moments: list[int]) -> None:
    from sluice.tidb import tso

    click.echo(f"as of {' and '.join(map(tso.text, moments))}", err=True)
    if past.skipped:
        click.echo(f"without the transactions that operators left out: {past.skipped}", err=True)
    for name, found in past.tables.items():
        if found.left_out:
            click.echo(
                f"{name}: without generated columns that no snapshot holds:"
                f" {', '.join(found.left_out)}",
                err=True,
            )


def _write(
    past: TimeTravelQuery,
    schemas: dict[str, pa.Schema],
    rows: Iterable[tuple[str, pa.RecordBatch]],
    kind: str,
    folder: Path | None,
) -> None:
    from sluice.etl.history.as_of.output import file_output, screen_output
    from sluice.etl.spark.worker_tuning import raise_nofile_limit

    raise_nofile_limit()
    counts = dict.fromkeys(schemas, 0)
    with contextlib.ExitStack() as open_files:
        outputs = {}
        for name, schema in schemas.items():
            table = past.tables[name].table
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                output = file_output(folder, kind, name, schema, table)
            else:
                output = screen_output(kind, schema, table)
            outputs[name] = open_files.enter_context(output)
        for name, batch in rows:
            outputs[name].write(batch)
            counts[name] += batch.num_rows
    for name, count in counts.items():
        click.echo(
            f"{name}: {counted(count, 'row')}{f' in {folder}' if folder is not None else ''}",
            err=True,
        )


def _print(
    past: TimeTravelQuery,
    schemas: dict[str, pa.Schema],
    rows: Iterable[tuple[str, pa.RecordBatch]],
    limit: int,
    *,
    diff: bool,
) -> None:
    from sluice.etl.history.as_of.output import render_rows

    shown: dict[str, list[list[str]]] = {name: [] for name in schemas}
    counts = dict.fromkeys(schemas, 0)
    for name, batch in rows:
        room = max(0, limit - len(shown[name]))
        shown[name] += itertools.islice(render_rows(schemas[name].names, batch), room)
        counts[name] += batch.num_rows
    for name, schema in schemas.items():
        click.echo(f"{name}: {counts[name]:,} {'differences' if diff else 'rows'}")
        keys = [column for column, _ in _keys(past, name)]
        lines = (
            _differences(schema.names, shown[name], keys)
            if diff
            else _aligned(schema.names, shown[name])
        )
        for line in lines:
            click.echo(line)
        if counts[name] > len(shown[name]):
            click.echo(
                f"  and {counts[name] - len(shown[name]):,} more: --limit, or --to FOLDER for all"
                " of them"
            )


def _keys(past: TimeTravelQuery, name: str) -> list[tuple[str, Any]]:
    return [
        (column.name, column) for column in past.asked.versions[past.moments[-1]][name].steady_key
    ]


def _aligned(names: list[str], rows: list[list[str]]) -> Iterator[str]:
    if not rows:
        return
    rows = [[_short(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    for row in (names, *rows):
        yield (
            "  "
            + "  ".join(
                value.ljust(width) for value, width in zip(row, widths, strict=True)
            ).rstrip()
        )


def _differences(names: list[str], rows: list[list[str]], keys: list[str]) -> Iterator[str]:
    for row in rows:
        values = dict(zip(names, map(_short, row), strict=True))
        old = {name[4:]: value for name, value in values.items() if name.startswith("old.")}
        new = {name[4:]: value for name, value in values.items() if name.startswith("new.")}
        change = values["change"]
        if change == "changed":
            same = ", ".join(f"{key}={new[key]}" for key in keys)
            other = [f"{n}: {old[n]} -> {new[n]}" for n in new if n in old and old[n] != new[n]]
            yield f"  {change:8}  {same}  {', '.join(other)}"
        else:
            image = old if change == "deleted" else new
            yield f"  {change:8}  {', '.join(f'{name}={value}' for name, value in image.items())}"


def _short(value: str) -> str:
    """Shorten to one line."""
    plain = value.replace("\n", "\\n").replace("\t", "\\t")
    return plain if len(plain) <= _MAX_VALUE_CHARS else f"{plain[: _MAX_VALUE_CHARS - 1]}…"
