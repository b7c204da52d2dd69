"""sluice replicate: land and apply as a service."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

import click

from sluice.cli._settings import address_of, choose_pipeline, config_option, settings_of

_LISTEN = "127.0.0.1:8246"


@click.command("replicate")
@click.option(
    "--listen",
    default=_LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="Address at which /healthz and /readyz are served.",
)
@config_option
@click.pass_context
def command(ctx: click.Context, *, listen: str, config: str | None) -> None:
    """Land and apply until interrupted, in place of the tasks of the DAG `replicate`.

    Of several such processes of a pipeline one works, and the others stand by: one of them goes on
    within half a minute when it or its host dies. It needs `replication = "service"` in
    [airflow]; the DAG then watches. /healthz answers 200 while the process isn't stuck, /readyz
    while it stands by or replicates, and 503 when an operator has to act.
    """
    from sluice.etl.settings.pipeline_names import name_of
    from sluice.etl.settings.pipelines import NamedPipeline
    from sluice.etl.settings.store_connection import provide_credentials
    from sluice.etl.tasks.health_endpoint import HealthEndpoint
    from sluice.etl.tasks.service import ReplicationService

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    settings_of(ctx, config)  # prints which pipeline
    path = choose_pipeline(ctx, config).path
    pipeline = NamedPipeline(name_of(path), path)
    service, stop = ReplicationService(pipeline), threading.Event()
    provide_credentials(pipeline.settings)

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    endpoint = HealthEndpoint(service.state, *address_of(listen, _LISTEN))
    try:
        host, port = endpoint.address
        click.echo(f"serving http://{host}:{port}/readyz")
        service.run(stop)
    finally:
        endpoint.close()
