"""sluice doctor: check everything that a pipeline needs."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from sluice.cli._settings import config_option, settings_of


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="For scripts: a JSON list of the results.")
@config_option
@click.pass_context
def command(ctx: click.Context, *, as_json: bool, config: str | None) -> int:
    """Check everything that a running pipeline needs, and name a way out of what isn't right.

    It asks the upstream, its TiDB servers, the pumps, the downstream and Spark, looks at disks, at
    what holds replication back, and at how far archive and verification reach. Nothing is written.
    Exit code 1 if anything fails; a warning alone is 0.
    """
    from sluice.etl.operate.doctor import FAIL, OK, WARN, check_pipeline

    results = check_pipeline(settings_of(ctx, config))
    failed = [each for each in results if each.state == FAIL]
    if as_json:
        click.echo(json.dumps([asdict(each) for each in results], indent=1, ensure_ascii=False))
        return 1 if failed else 0
    width = max(len(each.area) for each in results)
    for each in results:
        click.echo(
            f"{each.state.upper() if each.state == FAIL else each.state:<5}"
            f"{each.area:<{width}}  {each.text}"
        )
        if each.state != OK and each.hint:
            click.echo(f"{'':<{5 + width}}  -> {each.hint}")
    warned = sum(each.state == WARN for each in results)
    click.echo(f"{len(results)} checks: {len(failed)} failed, {warned} with a warning")
    return 1 if failed else 0
