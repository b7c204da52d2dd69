"""sluice bench archive, restore, copy, snapshots, as-of: measure what copies or keeps rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from sluice.cli._bench_output import (
    JSON_OPTION,
    bench_stack,
    keep,
    print_machine,
    print_stages,
    say,
)
from sluice.cli._stack import recording_option, signals_as_interrupt
from sluice.cli._suggestions import Choice
from sluice.devstack.repository import recording_folder


@click.command("archive")
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
@JSON_OPTION
@click.pass_context
def archive_command(
    ctx: click.Context, *, directory: Path | None, changes: int | None, workers: int, as_json: bool
) -> int:
    """Measure row changes/s of archiving a landed backlog, and its bytes in the archive."""
    from sluice.bench.apply import RECORDING
    from sluice.bench.archive import CHANGES, measure

    folder = (directory or recording_folder(RECORDING)).absolute()
    with signals_as_interrupt():
        result = measure(bench_stack(ctx), folder, changes or CHANGES, workers, say)
    if keep(ctx, asdict(result), as_json=as_json):
        return 0
    click.echo(
        f"\n{result.changes / result.seconds:,.0f} row changes/s ({result.changes:,} in"
        f" {result.seconds:.2f} s, {result.segments} segments, {workers} at once)"
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
    print_stages("where the time went (ms, of jobs that overlap)", result.stages_ms)
    print_machine()
    return 0


@click.command("restore")
@recording_option(
    "Recording with the changes to restore again and again [the recording `sysbench`]."
)
@click.option(
    "--rows", type=click.IntRange(min=1), help="Rows of the snapshot, in ten tables [1,000,000]."
)
@click.option(
    "--changes", type=click.IntRange(min=1), help="Row changes of the archive [1,000,000]."
)
@JSON_OPTION
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
        results = measure(bench_stack(ctx), folder, rows or ROWS, changes or CHANGES, say)
    if keep(ctx, {"restores": [asdict(result) for result in results]}, as_json=as_json):
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
    print_machine()
    return 0


@click.command("copy")
@click.option(
    "--rows", type=click.IntRange(min=1), help="Rows of the dump, 190 bytes each [1,000,000]."
)
@click.option("--format", "form", type=Choice(["sql", "csv"]), default="sql", show_default=True)
@click.option(
    "--indexes", type=Choice(["before", "after", "both"]), default="after", show_default=True,
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
@JSON_OPTION
@click.pass_context
def copy_command(
    ctx: click.Context, *, rows: int | None, form: str, indexes: str, making: bool, as_json: bool
) -> int:
    """Measure rows/s and MB/s of making an empty database a replica from a dump."""
    from sluice.bench.copy import ROWS, measure

    if making:
        return _copy_making(ctx, rows or ROWS, form, as_json=as_json)
    ways = [(form, each) for each in (("before", "after") if indexes == "both" else (indexes,))]
    with signals_as_interrupt():
        results = measure(bench_stack(ctx), rows or ROWS, ways, say)
    if keep(
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
        _print_costs(result.rows, result.cpu_s, result.rss_mib)
        click.echo(
            f"  limited by            {result.limit}: sessions waited {result.waited_s:.1f} s for"
            f" rows, wrote {result.written_s:.1f} s"
        )
    print_machine()
    return 0


def _print_costs(rows: int, cpu_s: Mapping[str, float], rss_mib: Mapping[str, float]) -> None:
    cpu = {name: 1e6 * seconds / rows for name, seconds in cpu_s.items()}
    for title, found in (("CPU, us a row", cpu), ("memory at most, MiB", rss_mib)):
        click.echo(
            f"  {title:<22}" + ", ".join(f"{name} {value:.4g}" for name, value in found.items())
        )


def _copy_making(ctx: click.Context, rows: int, form: str, *, as_json: bool) -> int:
    from sluice.bench.copy import measure_making

    with signals_as_interrupt():
        results = measure_making(bench_stack(ctx), rows, form, (1, 2), say)
    if keep(
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
        _print_costs(result.rows, result.cpu_s, result.rss_mib)
    one, two = results
    click.echo(f"\ntwo workers: {one.seconds / two.seconds:.2f} times as fast as one")
    print_machine()
    return 0


@click.command("snapshots")
@click.option("--rows", type=click.IntRange(min=1), help="Row changes per transaction.")
@JSON_OPTION
@click.pass_context
def snapshots_command(ctx: click.Context, *, rows: int | None, as_json: bool) -> int:
    """Measure MB/s of a snapshot from a dump or the downstream, and of its load into a database."""
    from sluice.bench.snapshots import ROWS, measure

    with signals_as_interrupt():
        results = measure(bench_stack(ctx), rows or ROWS, say)
    if keep(ctx, {"snapshots": [asdict(result) for result in results]}, as_json=as_json):
        return 0
    for result in results:
        click.echo("\n" + "\n".join(result.lines()))
    print_machine()
    return 0


@click.command("as-of")
@click.option(
    "--gigabytes", type=click.FloatRange(min=0.01), default=1.0, show_default=True,
    help="Size of the table's rows; the disk needs four times as much.",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(min=1), multiple=True,
    help="Workers of one core, may be repeated [1, 2 and 4].",
)  # fmt: skip
@JSON_OPTION
@click.pass_context
def as_of_command(
    ctx: click.Context, *, gigabytes: float, workers: tuple[int, ...], as_json: bool
) -> int:
    """Measure as-of of a large table by 1, 2 and 4 workers, its memory, and a killed worker."""
    from sluice.bench.as_of import measure
    from sluice.cli._bench_output import bench_home

    home = (bench_home(ctx) / "as-of").absolute()
    with signals_as_interrupt():
        results = measure(home, int(gigabytes * 1e9), list(workers or (1, 2, 4)), say)
    if keep(ctx, {"as_of": [asdict(result) for result in results]}, as_json=as_json):
        return 0
    for result in results:
        killed = ", one of them killed in the middle" if result.killed else ""
        rate = result.row_bytes / 1e6 / result.seconds
        click.echo(
            f"\n{result.workers} workers{killed}: {result.seconds:.1f} s, {rate:,.1f} MB/s"
            f" ({result.rows:,} rows); CPU {result.cpu_s:.1f} s, other processes had"
            f" {result.others_cores:.2f} cores"
        )
        for kind, thirds in result.memory_mib.items():
            click.echo(f"  {kind:<10} MiB in each third: {', '.join(map(str, thirds))}")
    print_machine()
    return 0
