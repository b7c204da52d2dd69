"""sluice bench pump, capture and soak: measure pumps, and kill everything at random."""

from __future__ import annotations

import re
from dataclasses import asdict

import click

from sluice.cli._bench_output import (
    JSON_OPTION,
    bench_stack,
    keep,
    print_machine,
    print_table,
    say,
)
from sluice.cli._stack import signals_as_interrupt
from sluice.cli._suggestions import Choice


@click.command("pump")
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
    type=Choice(["pull", "window"]),
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
@JSON_OPTION
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
            results = measure(bench_stack(ctx), cases or CASES, seconds, reads, say)
        else:
            results = measure_another(address, cluster_id, cases or CASES, seconds)
    failed = any(each["errors"] for each in results)
    if keep(ctx, {"cases": results}, as_json=as_json):
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
    print_machine()
    return 1 if failed else 0


@click.command("capture")
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
@JSON_OPTION
@click.pass_context
def capture_command(
    ctx: click.Context, *, rows: int | None, changes: int | None, stages: bool, as_json: bool
) -> int:
    """Measure row changes/s of capturing TiKV's change data into a pump's store."""
    from sluice.bench.capture import CHANGES, ROWS, measure
    from sluice.bench.capture_stream import measure_stream

    with signals_as_interrupt():
        run = measure if stages else measure_stream
        result = run(rows or ROWS, changes or CHANGES, say)
    if keep(ctx, result.as_dict(), as_json=as_json):
        return 0
    click.echo()
    cost = sum(result.cpu_us.values())
    mb_per_s = result.message_bytes / result.seconds / 1e6
    print_table(
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
    print_machine()
    return 0


@click.command("soak")
@click.option(
    "--mode",
    type=Choice(["atomic", "parallel"]),
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
@JSON_OPTION
@click.pass_context
def soak_command(
    ctx: click.Context, *, mode: str, kills: int, interval: float, seed: int, as_json: bool
) -> int:
    """Kill -9 at random in a long replay, with a reader that sums the bank's accounts."""
    from sluice.bench.soak import Kills, check, measure

    with signals_as_interrupt():
        stack = bench_stack(ctx, f'\n[apply]\nmode = "{mode}"\n')
        result = measure(stack, mode, Kills(kills, interval, seed), say)
    wrong = check(result)
    most = sorted(result.sums.items(), key=lambda item: -item[1])[:3]
    if keep(ctx, asdict(result) | {"wrong": wrong}, as_json=as_json):
        return 1 if wrong else 0
    click.echo()
    print_table(
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
