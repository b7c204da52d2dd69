"""sluice metrics: serve Prometheus metrics, or push them to a Pushgateway."""

from __future__ import annotations

import contextlib
import socket

import click

from sluice.cli._settings import address_of, config_option, pipelines_of
from sluice.cli._stack import signals_as_interrupt

_LISTEN = "127.0.0.1:8249"
"""The port that a Drainer has."""
_ONCE_TIMEOUT_S = 15.0
"""Time for one sample, as no second one could complete it."""


@click.command("metrics")
@click.option(
    "--listen",
    default=_LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="Address at which /metrics is served.",
)
@click.option("--push", metavar="ADDRESS", help="Also push to the Pushgateway at this address.")
@click.option(
    "--push-interval",
    type=click.IntRange(1),
    default=15,
    show_default=True,
    help="Seconds between pushes.",
)
@click.option(
    "--instance", default="", help="Label `instance` of pushed metrics [host and port of --listen]."
)
@click.option(
    "--tables",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    help=(
        "How many tables of each pipeline have their own counters, those with the most changes"
        " first."
    ),
)
@click.option("--once", is_flag=True, help="Print the metrics once, and exit.")
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    listen: str,
    push: str | None,
    push_interval: int,
    instance: str,
    tables: int,
    once: bool,
    config: str | None,
) -> None:
    """Serve the pipelines' Prometheus metrics until interrupted, independently of Airflow's tasks.

    Without --config: the pipelines of SLUICE_CONFIG and SLUICE_PIPELINES, or the one-machine
    stack's. Run it as a service of its own beside Airflow; it needs the settings files and access
    to the servers that they name.
    """
    from sluice.etl.operate.metrics import MetricsEndpoint, MetricsPusher, PipelineCollector

    found = pipelines_of(ctx, config)
    if once:
        click.echo(
            PipelineCollector(found, tables, patience_s=_ONCE_TIMEOUT_S).text().decode(), nl=False
        )
        return
    gatherer = PipelineCollector(found, tables)
    host, port = address_of(listen, _LISTEN)
    with (
        contextlib.ExitStack() as stack,
        contextlib.suppress(KeyboardInterrupt),
        signals_as_interrupt(),
    ):
        endpoint = MetricsEndpoint(gatherer, host, port)
        stack.callback(endpoint.close)
        host, port = endpoint.address
        click.echo(f"serving http://{host}:{port}/metrics")
        if push:
            pusher = MetricsPusher(
                gatherer, push, instance or f"{socket.gethostname()}:{port}", push_interval
            )
            stack.callback(pusher.close)
            click.echo(f"pushing to {push} every {push_interval} s")
        endpoint.wait()
