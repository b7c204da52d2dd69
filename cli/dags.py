"""sluice dags: where the DAG files are."""

from __future__ import annotations

import json

import click

from sluice.devstack.repository import DAGS

_LOCAL = "airflow.dag_processing.bundles.local.LocalDagBundle"


@click.command("dags")
@click.option(
    "--bundles",
    is_flag=True,
    help="Print Airflow's setting for a second DAG bundle beside your own DAG folder.",
)
def command(*, bundles: bool) -> None:
    """Print the folder with the DAG files of this version.

    Airflow takes it as its only DAG folder, or, with --bundles, as one beside your own:

    export AIRFLOW__CORE__DAGS_FOLDER=$(sluice dags)

    export AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST=$(sluice dags --bundles)
    """
    if not bundles:
        click.echo(DAGS)
        return
    own = {"name": "dags-folder", "classpath": _LOCAL, "kwargs": {}}
    ours = {"name": "sluice", "classpath": _LOCAL, "kwargs": {"path": str(DAGS)}}
    click.echo(json.dumps([own, ours]))
