"""Print the results of checks in one way: a table or JSON, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from sluice.cli._json_lines import SCHEMA
from sluice.errors import FAIL, OK, WARN, CheckResult

json_option = click.option(
    "--json", "as_json", is_flag=True, help="For scripts: one JSON object with the results."
)


def print_checks(results: Sequence[CheckResult], *, as_json: bool = False, **more: object) -> int:
    """Print the results, each with its hint, and their counts; return the exit code.

    It is 1 if any result is FAIL; a warning alone is 0. `more` are further values of the JSON.
    """
    failed, warned = (sum(each.state == state for each in results) for state in (FAIL, WARN))
    if as_json:
        document = (
            {"schema": SCHEMA}
            | more
            | {
                "failed": failed,
                "warned": warned,
                "results": [asdict(each) for each in results],
            }
        )
        click.echo(json.dumps(document, indent=1, ensure_ascii=False))
        return 1 if failed else 0
    width = max(len(each.area) for each in results)
    for each in results:
        state = each.state.upper() if each.state == FAIL else each.state
        click.echo(f"{state:<5} {each.area:<{width}}  {each.text}")
        if each.state != OK and each.hint:
            click.echo(f"{'':<{6 + width}}  -> {each.hint}")
    click.echo(f"{len(results)} checks: {failed} failed, {warned} with a warning")
    return 1 if failed else 0
