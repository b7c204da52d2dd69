"""sluice bench kafka: measure sending to a Kafka broker, format by format."""

from __future__ import annotations

from dataclasses import asdict

import click

from sluice.cli._bench_output import JSON_OPTION, bench_home, keep, print_machine, say
from sluice.cli._stack import signals_as_interrupt
from sluice.cli._suggestions import Choice

_FORMATS = ("canal-json", "debezium-json", "avro", "debezium-avro", "open-protocol", "simple")


@click.command("kafka")
@click.option(
    "--brokers", required=True, metavar="HOST:PORT", help="Broker to send to; it keeps nothing."
)
@click.option(
    "--format", "formats", multiple=True, type=Choice(_FORMATS),
    help="Format to measure; may be repeated [all that need no registry, with --registry all].",
)  # fmt: skip
@click.option("--registry", "registry_url", default="", metavar="URL", help="Schema registry.")
@click.option(
    "--repeated", type=click.IntRange(min=1), default=4, show_default=True,
    help="How many times the backlog's traffic comes.",
)  # fmt: skip
@click.option(
    "--lag-seconds", type=click.FloatRange(min=0), default=20.0, show_default=True,
    help="How long the lag is measured at 100 transactions/s; 0: not at all.",
)  # fmt: skip
@click.option(
    "--client", "options", multiple=True, metavar="OPTION=VALUE",
    help="Option of librdkafka, as in compression.type=lz4; may be repeated.",
)  # fmt: skip
@JSON_OPTION
@click.pass_context
def kafka_command(
    ctx: click.Context,
    *,
    brokers: str,
    formats: tuple[str, ...],
    registry_url: str,
    repeated: int,
    lag_seconds: float,
    options: tuple[str, ...],
    as_json: bool,
) -> int:
    """Measure row changes/s and lag of sending to Kafka.

    Topics are made on the broker, and removed.
    """
    from sluice.bench.kafka import measure
    from sluice.etl.settings import Kafka

    for option in options:
        if "=" not in option:
            raise click.BadParameter(f"{option!r} is not OPTION=VALUE", param_hint="--client")
    pairs = (option.partition("=") for option in options)
    client: dict[str, str | int | bool] = {name: value for name, _, value in pairs}
    chosen = formats or [f for f in _FORMATS if registry_url or not f.endswith("avro")]
    results = []
    with signals_as_interrupt():
        for name in chosen:
            url = registry_url if name.endswith("avro") else ""
            kafka = Kafka(brokers, format=name, registry_url=url, client=client)
            folder = bench_home(ctx) / "kafka"
            results.append(measure(kafka, folder, repeated, lag_seconds, say))
    wrong = any(each.differences for each in results)
    if keep(ctx, {"formats": [asdict(each) for each in results]}, as_json=as_json):
        return 1 if wrong else 0
    click.echo(
        f"\n{'format':<15}{'changes/s':>10}{'changes':>9}{'bytes each':>11}{'lag p50':>9}"
        f"{'p95 ms':>8}{'wrong':>7}"
    )
    for each in results:
        lag = [f"{each.lag_ms[name]:.0f}" if each.lag_ms else "-" for name in ("p50", "p95")]
        click.echo(
            f"{each.format:<15}{each.rows_per_s:>10,.0f}{each.changes:>9,}"
            f"{each.bytes / max(each.changes, 1):>11,.0f}{lag[0]:>9}{lag[1]:>8}"
            f"{each.differences:>7}"
        )
        used = ", ".join(f"{name} {micros:g}" for name, micros in each.cpu_us.items())
        click.echo(f"  CPU, us a row change: {used}")
    print_machine()
    return 1 if wrong else 0
