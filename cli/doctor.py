"""sluice doctor: check everything that a pipeline needs."""

from __future__ import annotations

import click

from sluice.cli._check_results import json_option, print_checks
from sluice.cli._garbage import collect_no_garbage
from sluice.cli._settings import config_option, settings_of


@click.command("doctor")
@json_option
@config_option
@click.pass_context
def command(ctx: click.Context, *, as_json: bool, config: str | None) -> int:
    """Check everything that a running pipeline needs, and name a way out of what isn't right.

    It asks the upstream, its TiDB servers, the pumps, the downstream and Spark, looks at disks, at
    what holds replication back, and at how far archive and verification reach. Nothing is written.
    Exit code 1 if anything fails; a warning alone is 0.
    """
    collect_no_garbage(ctx)
    from sluice.etl.operate.doctor import check_pipeline

    return print_checks(check_pipeline(settings_of(ctx, config)), as_json=as_json)
