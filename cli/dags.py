"""sluice dags: where the DAG files are."""

from __future__ import annotations

import click

from embedded.repository import DAGS


@click.command("dags")
def command() -> None:
    """Print the folder with the DAG files of this version. Airflow takes it as its DAG folder:

    export AIRFLOW__CORE__DAGS_FOLDER=$(sluice dags)
    """
    click.echo(DAGS)
