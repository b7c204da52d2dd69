"""sluice doctor: check everything that a pipeline needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from sluice.cli._settings import config_option, settings_of

if TYPE_CHECKING:
    from sluice.etl.operate.doctor import CheckResult


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
    from sluice.etl.operate.doctor import FAIL, check_pipeline

    results = check_pipeline(settings_of(ctx, config))
    failed = [each for each in results if each.state == FAIL]
    if as_json:
        click.echo(json.dumps([asdict(each) for each in results], indent=1, ensure_ascii=False))
        return 1 if failed else 0
    show(results)
    return 1 if failed else 0


def show(results: Sequence[CheckResult]) -> None:
    """Print the results, each with its way out, and their counts."""
    from sluice.etl.operate.doctor import FAIL, OK, WARN

    width = max(len(each.area) for each in results)
    for each in results:
        state = each.state.upper() if each.state == FAIL else each.state
        click.echo(f"{state:<5} {each.area:<{width}}  {each.text}")
        if each.state != OK and each.hint:
            click.echo(f"{'':<{6 + width}}  -> {each.hint}")
    failed, warned = (sum(each.state == state for each in results) for state in (FAIL, WARN))
    click.echo(f"{len(results)} checks: {failed} failed, {warned} with a warning")
