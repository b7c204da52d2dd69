"""sluice up: start the stack, or those of its parts that don't run."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path

import click

from sluice.cli._stack import recording_option, signals_as_interrupt, stack_of


@click.command("up")
@click.argument("parts", nargs=-1)
@recording_option("What the stand-in cluster plays [the recording `shop`].")
@click.pass_context
def command(ctx: click.Context, parts: tuple[str, ...], directory: Path | None) -> None:
    """Start the stack, or only PARTS of it, and leave it running. Running parts are left alone.

    Parts: etcd, cluster, pump-1, pump-2, mariadb, spark, airflow-api, airflow-scheduler,
    airflow-dag-processor, airflow-triggerer, metrics.
    """
    stack = stack_of(ctx)
    before = stack.running()
    try:
        with signals_as_interrupt():
            started = stack.up(parts, recording=directory, report=partial(click.echo, err=True))
    except BaseException:
        if not before and not parts:
            click.echo("stopping what was started", err=True)
            stack.down()
        raise
    if parts or (before and started):
        if not started:
            click.echo("running already")
        return
    # with the stack's launchers, for which `--help` doesn't wait
    from sluice.devstack import LOOPBACK, airflow_url, password_file
    from sluice.devstack.launch import client_file

    site = stack.site()
    click.echo("everything was running already" if not started else "")
    click.echo(f"Airflow      {airflow_url(site.ports['airflow'])}")
    click.echo(f"             user admin, password in {password_file(site.home)}")
    click.echo(f"pages        {airflow_url(site.ports['airflow'])}/plugin/sluice")
    click.echo(f"downstream   mariadb --defaults-file={client_file(site)}")
    click.echo(f"pumps        {LOOPBACK}:{site.ports['pump-1']}, {LOOPBACK}:{site.ports['pump-2']}")
    click.echo(
        f"PD, etcd     http://{LOOPBACK}:{site.ports['cluster']},"
        f" http://{LOOPBACK}:{site.ports['etcd-client']}"
    )
    click.echo(
        f"TiDB         {LOOPBACK}:{site.ports['cluster-sql']}, user root, no password: reads what"
        " was played, then takes INSERT, UPDATE, DELETE"
    )
    click.echo(f"Spark        sc://{LOOPBACK}:{site.ports['spark']}")
    click.echo(f"metrics      http://{LOOPBACK}:{site.ports['metrics']}/metrics")
    click.echo(f"state, logs  {site.home}")
    program = shlex.quote(sys.argv[0]) if Path(sys.argv[0]).name == "sluice" else "sluice"
    recording = shlex.quote(str(site.recording))
    click.echo(f"next: {program} replay {recording} · then status, doctor, top; down stops all")
