"""sluice bench: measure on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluice.cli import _bench_copies, _bench_kafka, _bench_pump
from sluice.cli._bench_output import (
    JSON_OPTION,
    bench_home,
    bench_stack,
    keep,
    print_machine,
    print_stages,
    print_table,
    say,
)
from sluice.cli._stack import recording_option, signals_as_interrupt
from sluice.cli._suggestions import Choice
from sluice.devstack.repository import recording_folder

if TYPE_CHECKING:
    from sluice.bench.lag_beside import BesideResult


@click.group("bench")
def command() -> None:
    """Measure on this machine.

    Each benchmark starts a stack of its own on empty data and stops it; docs/how-to/measure.md
    explains what is measured and how to compare.
    """


for _each in (
    _bench_copies.archive_command,
    _bench_copies.restore_command,
    _bench_copies.copy_command,
    _bench_copies.snapshots_command,
    _bench_copies.as_of_command,
    _bench_kafka.kafka_command,
    _bench_pump.pump_command,
    _bench_pump.capture_command,
    _bench_pump.soak_command,
):
    command.add_command(_each)


@command.command("apply")
@recording_option("What to apply [the recording `sysbench`].")
@click.option(
    "--mode",
    type=Choice(["atomic", "parallel"]),
    default="atomic",
    show_default=True,
    help="How changes are applied.",
)
@click.option(
    "--repeated",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="How many times the recording's traffic comes again.",
)
@click.option(
    "--rule",
    type=Choice(["rows", "null", "hash", "digits", "email", "partial"]),
    help="Apply with a rule: `rows` selects all rows by a condition, the others mask a column.",
)
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME",
    help="Synthetic traffic of this shape instead of a recording, without Airflow and Spark; may"
    " be repeated; `all`.",
)  # fmt: skip
@click.option(
    "--round-trip", "round_trip_ms", type=click.FloatRange(min=0), default=0.0, metavar="MS",
    help="With --shape: network round trip to the downstream.",
)  # fmt: skip
@JSON_OPTION
@click.pass_context
def apply_command(
    ctx: click.Context,
    *,
    directory: Path | None,
    mode: str,
    repeated: int,
    rule: str | None,
    shapes: tuple[str, ...],
    round_trip_ms: float,
    as_json: bool,
) -> int:
    """Measure row changes/s of applying a landed backlog."""
    from sluice.bench.apply import RECORDING, SETTINGS, measure, rule_settings

    if shapes and rule:
        raise click.UsageError("--rule is about a recording, and --shape makes traffic up", ctx)
    if shapes:
        return _apply_shapes(ctx, mode, shapes, round_trip_ms, as_json=as_json)
    with signals_as_interrupt():
        rules = rule_settings(rule, bench_home(ctx)) if rule else ""
        stack = bench_stack(ctx, f'{SETTINGS}\n[apply]\nmode = "{mode}"\n{rules}')
        folder = (directory or recording_folder(RECORDING)).absolute()
        result = measure(stack, folder, repeated, say, rule or "")
    if keep(ctx, asdict(result) | {"stages": result.stages_ms}, as_json=as_json):
        return 1 if result.differences else 0
    click.echo()
    print_table(
        {
            "recording": result.recording + (f", with the rule {rule}" if rule else ""),
            "apply": (
                f"{result.rows_per_s:,.0f} row changes/s ({result.measured_changes:,} in"
                f" {result.measured_s:.2f} s, {result.batches} batches, first left out)"
            ),
            "CPU": (
                ", ".join(f"{name} {each:g}" for name, each in result.cpu_us.items())
                + " us a row change"
            ),
            "net rows": f"{result.net_rows:,}",
            "memory": ", ".join(f"{name} {size} MiB" for name, size in result.rss_mib.items()),
            "land": (
                f"{result.land_rows_per_s:,.0f} row changes/s ({result.land_changes:,}, first"
                " window left out)"
            ),
            "differences": str(result.differences),
        }
    )
    print_stages("where applying spent its time (ms)", result.stages_ms)
    print_stages("where landing spent its time (ms)", result.land_stages_ms)
    print_machine()
    return 1 if result.differences else 0


def _apply_shapes(
    ctx: click.Context, mode: str, shapes: tuple[str, ...], round_trip_ms: float, *, as_json: bool
) -> int:
    from sluice.bench.apply_shapes import NAMES, measure

    if unknown := set(shapes) - {*NAMES, "all"}:
        raise click.BadParameter(
            f"{', '.join(unknown)}: there are {', '.join(NAMES)}", param_hint="--shape"
        )
    with signals_as_interrupt():
        stack = bench_stack(ctx, f'\n[apply]\nmode = "{mode}"\n')
        results = measure(stack, NAMES if "all" in shapes else shapes, say, round_trip_ms)
    wrong = any(result.differences for result in results)
    if keep(ctx, {"shapes": [asdict(result) for result in results]}, as_json=as_json):
        return 1 if wrong else 0
    click.echo(
        f"\n{'shape':<14}{'changes/s':>10}{'changes':>9}{'client us':>11}{'MariaDB us':>12}"
        f"{'wrong':>7}"
    )
    for each in results:
        client, server = each.cpu_us["client"], each.cpu_us["MariaDB"]
        click.echo(
            f"{each.shape:<14}{each.rows_per_s:>10,.0f}{each.changes:>9,}{client:>11.1f}{server:>12.1f}"
            f"{each.differences:>7}"
        )
        click.echo(
            "  " + ", ".join(f"{stage} {ms:,.0f}" for stage, ms in each.stages_ms.items()) + " ms"
        )
    print_machine()
    return 1 if wrong else 0


@command.command("land")
@recording_option("Recording with the changes to land again and again [the recording `sysbench`].")
@click.option(
    "--changes",
    "sizes",
    type=click.IntRange(min=1),
    multiple=True,
    help="Row changes of a backlog, may be repeated [200,000 and 1,000,000].",
)
@JSON_OPTION
@click.pass_context
def land_command(
    ctx: click.Context, *, directory: Path | None, sizes: tuple[int, ...], as_json: bool
) -> int:
    """Measure row changes/s of landing a backlog, how it grows with the backlog, and its memory."""
    from sluice.bench.apply import RECORDING
    from sluice.bench.land import SIZES, measure

    with signals_as_interrupt():
        results = measure(
            bench_stack(ctx),
            (directory or recording_folder(RECORDING)).absolute(),
            sizes or SIZES,
            say,
        )
    if keep(ctx, {"backlogs": [asdict(result) for result in results]}, as_json=as_json):
        return 0
    for result in results:
        click.echo(
            f"\n{result.rows_per_s:,.0f} row changes/s ({result.changes:,} in {result.seconds:.2f}"
            f" s, {result.windows} windows, the first and the last left out)"
        )
        tables: dict[str, Mapping[str, float]] = {
            "CPU, us a row change": (
                {"taking it in pumps, before": result.taking_us} | result.cpu_us
            ),
            "memory at most, MiB": result.rss_mib,
            "bytes, of binlogs 1": result.written,
        }
        for title, found in tables.items():
            click.echo(
                f"  {title:<22}" + ", ".join(f"{name} {value:g}" for name, value in found.items())
            )
        print_stages("where the time went (ms, of jobs that overlap)", result.stages_ms)
    print_machine()
    return 0


@command.command("lag")
@click.option(
    "--rate", type=float, default=20.0, show_default=True, help="Transactions per second."
)
@click.option(
    "--samples", type=int, default=200, show_default=True, help="Transactions to measure."
)
@click.option("--rows", type=int, default=1, show_default=True, help="Row changes a transaction.")
@click.option(
    "--idle", "idle_s", type=float, default=0.0, help="Seconds without traffic afterwards [none]."
)
@click.option(
    "--ddl",
    "ddl_s",
    type=float,
    default=0.0,
    metavar="SECONDS",
    help="Seconds between two DDL statements [none].",
)
@click.option(
    "--run-seconds", type=click.IntRange(min=5), help="Seconds that a DAG run lasts [300]."
)
@click.option(
    "--backfill", "table_rows", type=click.IntRange(min=1), metavar="ROWS",
    help="Alternate between without and with a concurrent backfill of a table with this many rows"
    " [none].",
)  # fmt: skip
@click.option(
    "--archive", "archive_every_s", type=click.FloatRange(min=1), metavar="SECONDS",
    help="Alternate between without and with archiving every this many seconds [none].",
)  # fmt: skip
@JSON_OPTION
@click.pass_context
def lag_command(
    ctx: click.Context,
    *,
    rate: float,
    samples: int,
    rows: int,
    idle_s: float,
    ddl_s: float,
    run_seconds: int | None,
    table_rows: int | None,
    archive_every_s: float | None,
    as_json: bool,
) -> int:
    """Measure the time from commit upstream until visible downstream.

    SLUICE_PUMPS in the environment sets the number of pumps [2].
    """
    from sluice.bench.lag import Course, LagResult, dags_with_runs_of, measure
    from sluice.bench.lag_beside import measure_beside_archive, measure_beside_backfill

    if archive_every_s:
        with signals_as_interrupt():
            stack = bench_stack(ctx, '\n[archive]\nevery = "1d"\n')
            both = measure_beside_archive(stack, rate, samples, archive_every_s, say)
        saved = keep(ctx, asdict(both) | {"added_p95_ms": both.added_p95_ms}, as_json=as_json)
        return 0 if saved else _print_beside(both, "archiving", "segments")
    if table_rows:
        with signals_as_interrupt():
            both = measure_beside_backfill(bench_stack(ctx), rate, samples, table_rows, say)
        saved = keep(ctx, asdict(both) | {"added_p95_ms": both.added_p95_ms}, as_json=as_json)
        return 0 if saved else _print_beside(both, "a backfill", "chunks")
    with signals_as_interrupt():
        stack = bench_stack(ctx)
        if run_seconds:
            from sluice.devstack import Stack

            stack = Stack(stack.home, dags_with_runs_of(run_seconds, stack.home / "dags"))
        course = Course(samples, ddl_s, idle_s)
        result = measure(stack, LagResult(rate, rows), course, say)
    if keep(ctx, asdict(result), as_json=as_json):
        return 0
    click.echo()
    used = {"CPU": result.cpu, "CPU when idle": result.idle_cpu}
    seconds = ", ".join(f"{name} {each:g} s" for name, each in result.cpu_s_per_1000.items())
    print_table(
        {
            "traffic": (
                f"{rate:g} transactions/s of {rows} rows, {result.samples} samples, {result.runs}"
                f" DAG runs, {result.ddls} DDL, {result.windows_per_s:g} windows/s"
            ),
            "CPU, 1,000 transactions": seconds,
            **{
                what: ", ".join(f"{name} {each:g} %" for name, each in cpu.items())
                for what, cpu in used.items()
                if cpu
            },
            "lag": (
                f"p50 {result.p50_ms:.0f} ms, p95 {result.p95_ms:.0f} ms, p99 {result.p99_ms:.0f}"
                f" ms, max {result.max_ms:.0f} ms"
            ),
            "above a second": (
                ", ".join(f"at {at:g} s {lag:.0f} ms" for at, lag in result.late) or "never"
            ),
        }
    )
    click.echo("\ndistribution")
    most = max(result.histogram.values())
    for bound, count in result.histogram.items():
        click.echo(f"  {bound:<12} {count:>6}  {'#' * max(1, round(50 * count / most))}")
    print_machine()
    return 0


def _print_beside(both: BesideResult, what: str, pieces: str) -> int:
    click.echo()
    lags = {
        name: (
            f"p50 {each.p50_ms:.0f} ms, p95 {each.p95_ms:.0f} ms, p99 {each.p99_ms:.0f} ms, max"
            f" {each.max_ms:.0f} ms"
        )
        for name, each in (("lag alone", both.alone), (f"beside {what}", both.beside))
    }
    rate = both.rows / both.seconds if both.seconds else 0.0
    print_table(
        {
            "traffic": f"{both.alone.rate:g} transactions/s, {both.alone.samples} samples each",
            **lags,
            "added p95": f"{both.added_p95_ms:.0f} ms",
            what: (
                f"{both.rows:,} rows in {both.chunks:,} {pieces} and {both.seconds:.1f} s:"
                f" {rate:,.0f} rows/s"
            ),
        }
    )
    print_machine()
    return 0
