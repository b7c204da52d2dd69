"""sluice bench: measure on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sluice.cli._stack import recording_option, signals_as_interrupt
from sluice.devstack import Stack
from sluice.devstack.repository import default_home, recording_folder

if TYPE_CHECKING:
    from sluice.bench.lag import BesideResult

_JSON = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object on standard output, progress on standard error.",
)


@click.group("bench")
def command() -> None:
    """Measure on this machine.

    Each benchmark starts a stack of its own on empty data and stops it; docs/how-to/measure.md
    explains what is measured and how to compare.
    """


@command.command("apply")
@recording_option("What to apply [the recording `sysbench`].")
@click.option(
    "--mode",
    type=click.Choice(["atomic", "parallel"]),
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
    "--shape", "shapes", multiple=True, metavar="NAME",
    help="Synthetic traffic of this shape instead of a recording, without Airflow and Spark; may"
    " be repeated; `all`.",
)  # fmt: skip
@click.option(
    "--round-trip", "round_trip_ms", type=click.FloatRange(min=0), default=0.0, metavar="MS",
    help="With --shape: network round trip to the downstream.",
)  # fmt: skip
@_JSON
@click.pass_context
def apply_command(
    ctx: click.Context,
    *,
    directory: Path | None,
    mode: str,
    repeated: int,
    shapes: tuple[str, ...],
    round_trip_ms: float,
    as_json: bool,
) -> int:
    """Measure row changes/s of applying a landed backlog."""
    from sluice.bench.apply import RECORDING, SETTINGS, measure

    if shapes:
        return _apply_shapes(ctx, mode, shapes, round_trip_ms, as_json=as_json)
    with signals_as_interrupt():
        stack = _stack(ctx, f'{SETTINGS}\n[apply]\nmode = "{mode}"\n')
        folder = (directory or recording_folder(RECORDING)).absolute()
        result = measure(stack, folder, repeated, _say)
    if _keep(ctx, asdict(result) | {"stages": result.stages_ms}, as_json=as_json):
        return 1 if result.differences else 0
    click.echo()
    _print_table(
        {
            "recording": result.recording,
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
    _print_stages("where applying spent its time (ms)", result.stages_ms)
    _print_stages("where landing spent its time (ms)", result.land_stages_ms)
    _print_machine()
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
        stack = _stack(ctx, f'\n[apply]\nmode = "{mode}"\n')
        results = measure(stack, NAMES if "all" in shapes else shapes, _say, round_trip_ms)
    wrong = any(result.differences for result in results)
    if _keep(ctx, {"shapes": [asdict(result) for result in results]}, as_json=as_json):
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
    _print_machine()
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
@_JSON
@click.pass_context
def land_command(
    ctx: click.Context, *, directory: Path | None, sizes: tuple[int, ...], as_json: bool
) -> int:
    """Measure row changes/s of landing a backlog, how it grows with the backlog, and its memory."""
    from sluice.bench.apply import RECORDING
    from sluice.bench.land import SIZES, measure

    with signals_as_interrupt():
        results = measure(
            _stack(ctx),
            (directory or recording_folder(RECORDING)).absolute(),
            sizes or SIZES,
            _say,
        )
    if _keep(ctx, {"backlogs": [asdict(result) for result in results]}, as_json=as_json):
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
        _print_stages("where the time went (ms, of jobs that overlap)", result.stages_ms)
    _print_machine()
    return 0


@command.command("archive")
@recording_option(
    "Recording with the changes to archive again and again [the recording `sysbench`]."
)
@click.option(
    "--changes", type=click.IntRange(min=1), help="Row changes of the backlog [2,000,000]."
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Archive segments written at the same time.",
)
@_JSON
@click.pass_context
def archive_command(
    ctx: click.Context, *, directory: Path | None, changes: int | None, workers: int, as_json: bool
) -> int:
    """Measure row changes/s of archiving a landed backlog, and its bytes in the archive."""
    from sluice.bench.apply import RECORDING
    from sluice.bench.archive import CHANGES, measure

    folder = (directory or recording_folder(RECORDING)).absolute()
    with signals_as_interrupt():
        result = measure(_stack(ctx), folder, changes or CHANGES, workers, _say)
    if _keep(ctx, asdict(result), as_json=as_json):
        return 0
    click.echo(
        f"\n{result.changes / result.seconds:,.0f} row changes/s ({result.changes:,} in"
        f" {result.seconds:.2f} s, {result.volumes} volumes, {workers} at once)"
    )
    for title, found in (
        ("CPU, us a row change", result.cpu_us),
        ("memory at most, MiB", result.rss_mib),
    ):
        click.echo(
            f"  {title:<22}" + ", ".join(f"{name} {value:g}" for name, value in found.items())
        )
    sizes = result.recording
    click.echo(
        f"the recording: {sizes.binlogs:,} bytes of binlogs, {sizes.relay:,} in the relay log; log"
        f" {sizes.log:,} ({100 * sizes.log / sizes.binlogs:.1f} %), lake {sizes.lake:,}"
        f" ({100 * sizes.lake / sizes.binlogs:.1f} %)"
    )
    _print_stages("where the time went (ms, of jobs that overlap)", result.stages_ms)
    _print_machine()
    return 0


@command.command("restore")
@recording_option(
    "Recording with the changes to restore again and again [the recording `sysbench`]."
)
@click.option(
    "--rows", type=click.IntRange(min=1), help="Rows of the snapshot, in ten tables [1,000,000]."
)
@click.option(
    "--changes", type=click.IntRange(min=1), help="Row changes of the archive [1,000,000]."
)
@_JSON
@click.pass_context
def restore_command(
    ctx: click.Context,
    *,
    directory: Path | None,
    rows: int | None,
    changes: int | None,
    as_json: bool,
) -> int:
    """Measure rows/s, MB/s and row changes/s of restoring all tables, and one of ten."""
    from sluice.bench.apply import RECORDING
    from sluice.bench.restore import CHANGES, ROWS, measure

    folder = (directory or recording_folder(RECORDING)).absolute()
    with signals_as_interrupt():
        results = measure(_stack(ctx), folder, rows or ROWS, changes or CHANGES, _say)
    if _keep(ctx, {"restores": [asdict(result) for result in results]}, as_json=as_json):
        return 0
    for result in results:
        load, apply = (max(result.stages_s.get(stage, 0.0), 1e-3) for stage in ("load", "apply"))
        click.echo(
            f"\n{result.what}: {result.rows:,} rows, {result.rows / load:,.0f}/s,"
            f" {result.row_bytes / load / 1e6:,.1f} MB/s; {result.changes:,} changes,"
            f" {result.changes / apply:,.0f}/s; {result.seconds:.1f} s in all, planned"
            f" {result.planned_s:.0f} s in {result.plan_s:.2f} s"
        )
        click.echo(
            "  seconds     "
            + ", ".join(f"{name} {value:g}" for name, value in result.stages_s.items())
        )
        click.echo(
            "  CPU seconds "
            + ", ".join(f"{name} {value:g}" for name, value in result.cpu_s.items())
        )
    _print_machine()
    return 0


@command.command("copy")
@click.option(
    "--rows", type=click.IntRange(min=1), help="Rows of the dump, 190 bytes each [1,000,000]."
)
@click.option(
    "--format", "form", type=click.Choice(["sql", "csv"]), default="sql", show_default=True
)
@click.option(
    "--indexes", type=click.Choice(["before", "after", "both"]), default="after", show_default=True,
    help="When the secondary index is made, of the rows; `both` compares.",
)  # fmt: skip
@click.option(
    "--making",
    is_flag=True,
    help=(
        "Without a database: measure only how fast Spark prepares the loads, with one worker and"
        " with two."
    ),
)
@_JSON
@click.pass_context
def copy_command(
    ctx: click.Context, *, rows: int | None, form: str, indexes: str, making: bool, as_json: bool
) -> int:
    """Rows/s and MB/s of making an empty database a replica from a dump, and what limits it."""
    from sluice.bench.copy import ROWS, measure

    if making:
        return _copy_making(ctx, rows or ROWS, form, as_json=as_json)
    ways = [(form, each) for each in (("before", "after") if indexes == "both" else (indexes,))]
    with signals_as_interrupt():
        results = measure(_stack(ctx), rows or ROWS, ways, _say)
    if _keep(
        ctx,
        {"copies": [asdict(result) | {"limit": result.limit} for result in results]},
        as_json=as_json,
    ):
        return 0
    for result in results:
        alone = (
            f"{result.rows / result.rows_seconds:,.0f} rows/s,"
            f" {result.bytes / 1e6 / result.rows_seconds:,.1f} MB/s"
        )
        click.echo(
            f"\n{result.form}, index {result.indexes} the rows: {result.rows / result.seconds:,.0f}"
            f" rows/s, {result.bytes / 1e6 / result.seconds:,.1f} MB/s ({result.rows:,} rows in"
            f" {result.seconds:.2f} s; rows alone {alone})"
        )
        cpu = {name: 1e6 * seconds / result.rows for name, seconds in result.cpu_s.items()}
        for title, found in (("CPU, us a row", cpu), ("memory at most, MiB", result.rss_mib)):
            click.echo(
                f"  {title:<22}" + ", ".join(f"{name} {value:.4g}" for name, value in found.items())
            )
        click.echo(
            f"  limited by            {result.limit}: sessions waited {result.waited_s:.1f} s for"
            f" rows, wrote {result.written_s:.1f} s"
        )
    _print_machine()
    return 0


def _copy_making(ctx: click.Context, rows: int, form: str, *, as_json: bool) -> int:
    from sluice.bench.copy import measure_making

    with signals_as_interrupt():
        results = measure_making(_stack(ctx), rows, form, (1, 2), _say)
    if _keep(
        ctx,
        {"making": [asdict(result) | {"cores": result.cores} for result in results]},
        as_json=as_json,
    ):
        return 0
    for result in results:
        rate, size = result.rows / result.seconds, result.bytes / 1e6 / result.seconds
        click.echo(
            f"\n{result.workers} worker{'s' * (result.workers > 1)}: {rate:,.0f} rows/s,"
            f" {size:,.1f} MB/s; busy with it: {result.cores:.2f} cores"
        )
        cpu = {name: 1e6 * seconds / result.rows for name, seconds in result.cpu_s.items()}
        for title, found in (("CPU, us a row", cpu), ("memory at most, MiB", result.rss_mib)):
            click.echo(
                f"  {title:<22}" + ", ".join(f"{name} {value:.4g}" for name, value in found.items())
            )
    one, two = results
    click.echo(f"\ntwo workers: {one.seconds / two.seconds:.2f} times as fast as one")
    _print_machine()
    return 0


@command.command("snapshots")
@click.option("--rows", type=click.IntRange(min=1), help="Row changes per transaction.")
@_JSON
@click.pass_context
def snapshots_command(ctx: click.Context, *, rows: int | None, as_json: bool) -> int:
    """Measure MB/s of a snapshot from a dump or the downstream, and of its load into a database."""
    from sluice.bench.snapshots import ROWS, measure

    with signals_as_interrupt():
        results = measure(_stack(ctx), rows or ROWS, _say)
    if _keep(ctx, {"snapshots": [asdict(result) for result in results]}, as_json=as_json):
        return 0
    for result in results:
        click.echo("\n" + "\n".join(result.lines()))
    _print_machine()
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
@_JSON
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
    from sluice.bench.lag import (
        Course,
        LagResult,
        dags_with_runs_of,
        measure,
        measure_beside_archive,
        measure_beside_backfill,
    )

    if archive_every_s:
        with signals_as_interrupt():
            stack = _stack(ctx, '\n[archive]\nevery = "1d"\n')
            both = measure_beside_archive(stack, rate, samples, archive_every_s, _say)
        kept = _keep(ctx, asdict(both) | {"added_p95_ms": both.added_p95_ms}, as_json=as_json)
        return 0 if kept else _print_beside(both, "archiving", "volumes")
    if table_rows:
        with signals_as_interrupt():
            both = measure_beside_backfill(_stack(ctx), rate, samples, table_rows, _say)
        kept = _keep(ctx, asdict(both) | {"added_p95_ms": both.added_p95_ms}, as_json=as_json)
        return 0 if kept else _print_beside(both, "a backfill", "chunks")
    with signals_as_interrupt():
        stack = _stack(ctx)
        if run_seconds:
            stack = Stack(stack.home, dags_with_runs_of(run_seconds, stack.home / "dags"))
        course = Course(samples, ddl_s, idle_s)
        result = measure(stack, LagResult(rate, rows), course, _say)
    if _keep(ctx, asdict(result), as_json=as_json):
        return 0
    click.echo()
    used = {"CPU": result.cpu, "CPU when idle": result.idle_cpu}
    seconds = ", ".join(f"{name} {each:g} s" for name, each in result.cpu_s_per_1000.items())
    _print_table(
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
    _print_machine()
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
    _print_table(
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
    _print_machine()
    return 0


@command.command("pump")
@click.option(
    "--case",
    "cases",
    multiple=True,
    metavar="CALLERSxBYTES",
    help="Case to run, may be repeated [the usual five].",
)
@click.option("--seconds", type=float, default=5.0, show_default=True, help="Length of a case.")
@click.option(
    "--reader",
    "reads",
    type=click.Choice(["pull", "window"]),
    default="pull",
    show_default=True,
    help="Which reader follows: a Drainer (pull), or landing (window).",
)
@click.option(
    "--address",
    metavar="HOST:PORT",
    help=(
        "Load this pump; it may be an original one. Never a pump in use: its readers would stop at"
        " the data sent."
    ),
)
@click.option(
    "--cluster-id", type=click.IntRange(min=1), help="Cluster id of the pump at --address."
)
@_JSON
@click.pass_context
def pump_command(
    ctx: click.Context,
    *,
    cases: tuple[str, ...],
    seconds: float,
    reads: str,
    address: str | None,
    cluster_id: int | None,
    as_json: bool,
) -> int:
    """Measure records/s of WriteBinlog, durable, with a reader that follows."""
    from sluice.bench.pump import measure, measure_another
    from sluice.bench.pump_load import CASES

    if (address is None) != (cluster_id is None):
        raise click.UsageError("--address and --cluster-id belong together")

    for case in cases:
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", case):
            raise click.BadParameter(
                f"{case!r} is not of the form 64x128 (callers x bytes)", param_hint="--case"
            )
    with signals_as_interrupt():
        if address is None or cluster_id is None:
            results = measure(_stack(ctx), cases or CASES, seconds, reads, _say)
        else:
            results = measure_another(address, cluster_id, cases or CASES, seconds)
    failed = any(each["errors"] for each in results)
    if _keep(ctx, {"cases": results}, as_json=as_json):
        return 1 if failed else 0
    click.echo(
        f"\n{'case':<10}{'records/s':>11}{'p50 ms':>9}{'p99 ms':>9}{'pump CPU':>10}{'load CPU':>10}"
        f"{'RSS MiB':>9}  limit"
    )
    for each in results:
        click.echo(
            f"{each['case']:<10}{each['records_per_s']:>11,.0f}{each['p50_ms']:>9.2f}{each['p99_ms']:>9.2f}"
            f"{each.get('pump_cpu', '-'):>10}{each['load_cpu']:>10.2f}"
            f"{each.get('pump_rss_mib', '-'):>9}  {each['limit']}"
            + (
                f"  {each['errors']} errors, the first: {each['first_error']}"
                if each["errors"]
                else ""
            )
        )
    _print_machine()
    return 1 if failed else 0


@command.command("capture")
@click.option(
    "--rows", type=click.IntRange(min=1), help="How many row changes [400,000].", metavar="N"
)
@click.option(
    "--changes",
    type=click.IntRange(min=1),
    help="Row changes of each transaction [4].",
    metavar="N",
)
@click.option("--stages", is_flag=True, help="Without a connection: CPU time of each stage.")
@_JSON
@click.pass_context
def capture_command(
    ctx: click.Context, *, rows: int | None, changes: int | None, stages: bool, as_json: bool
) -> int:
    """Measure row changes/s of capturing TiKV's change data into a pump's store."""
    from sluice.bench.capture import CHANGES, ROWS, measure
    from sluice.bench.capture_stream import measure_stream

    with signals_as_interrupt():
        run = measure if stages else measure_stream
        result = run(rows or ROWS, changes or CHANGES, _say)
    if _keep(ctx, result.as_dict(), as_json=as_json):
        return 0
    click.echo()
    cost = sum(result.cpu_us.values())
    mb_per_s = result.message_bytes / result.seconds / 1e6
    _print_table(
        {
            "captured": (
                f"{result.rows_per_s:,.0f} row changes/s, {mb_per_s:,.0f} MB/s of messages"
                f" ({result.rows:,} in {result.seconds:.2f} s)"
            ),
            "transactions": f"{result.transactions:,} of {result.changes_per_transaction} changes",
            "CPU": f"{cost:.2f} us a row change",
            "code": "compiled" if result.is_compiled else "Python",
        }
    )
    if stages:
        for name, us in result.cpu_us.items():
            click.echo(f"  {name:<18}{us:.2f} us")
    _print_machine()
    return 0


@command.command("soak")
@click.option(
    "--mode",
    type=click.Choice(["atomic", "parallel"]),
    default="atomic",
    show_default=True,
    help="How changes are applied.",
)
@click.option("--kills", type=int, default=50, show_default=True, help="Number of kills.")
@click.option(
    "--interval",
    type=float,
    default=6.0,
    show_default=True,
    help="Seconds between two kills, on average.",
)
@click.option(
    "--seed",
    type=int,
    default=1,
    show_default=True,
    help="Random seed for which process is killed when.",
)
@_JSON
@click.pass_context
def soak_command(
    ctx: click.Context, *, mode: str, kills: int, interval: float, seed: int, as_json: bool
) -> int:
    """Kill -9 at random in a long replay, with a reader that sums the bank's accounts."""
    from sluice.bench.soak import Kills, check, measure

    with signals_as_interrupt():
        stack = _stack(ctx, f'\n[apply]\nmode = "{mode}"\n')
        result = measure(stack, mode, Kills(kills, interval, seed), _say)
    wrong = check(result)
    most = sorted(result.sums.items(), key=lambda item: -item[1])[:3]
    if _keep(ctx, asdict(result) | {"wrong": wrong}, as_json=as_json):
        return 1 if wrong else 0
    click.echo()
    _print_table(
        {
            "mode": f"{mode}, seed {seed}, {result.seconds:.0f} s",
            "kills": ", ".join(f"{count} {name}" for name, count in sorted(result.kills.items())),
            "sums seen": (
                ", ".join(f"{total} ({count} times)" for total, count in most)
                + (
                    f", and {len(result.sums) - len(most)} others"
                    if len(result.sums) > len(most)
                    else ""
                )
            ),
            "compared": (
                f"{result.tables} tables, {result.rows_compared:,} rows, {len(result.differences)}"
                " differences"
            ),
        }
    )
    for line in wrong:
        click.echo(f"wrong: {line}")
    return 1 if wrong else 0


def _stack(ctx: click.Context, settings: str = "") -> Stack:
    return Stack(_home(ctx), settings=settings)


def _home(ctx: click.Context) -> Path:
    home: str | None = ctx.obj
    return (Path(home) if home else default_home()) / "bench"


def _say(line: str) -> None:
    click.echo(line, err=True)


def _keep(ctx: click.Context, found: dict[str, Any], *, as_json: bool) -> bool:
    """Save the results as a file; with `as_json`, print them, too. Return `as_json`."""
    from sluice.bench.results import document, keep

    whole = document(str(ctx.info_name), found)
    path = keep(_home(ctx) / "results", whole)
    click.echo(f"\nkept as {path}", err=True)
    if as_json:
        click.echo(json.dumps(whole, indent=1))
    return as_json


def _print_table(rows: dict[str, str]) -> None:
    for name, value in rows.items():
        click.echo(f"{name:<12} {value}")


def _print_stages(title: str, stages: dict[str, float]) -> None:
    click.echo(f"\n{title}")
    for stage, milliseconds in stages.items():
        click.echo(f"  {stage:<12} {milliseconds:>10,.0f}")


def _print_machine() -> None:
    from sluice.bench.machine import describe

    click.echo()
    _print_table(describe())
