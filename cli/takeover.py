"""sluice takeover: make the downstream this pipeline's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluice.cli._check_results import json_option, print_checks
from sluice.cli._settings import config_option, settings_of
from sluice.errors import WARN, CheckResult

if TYPE_CHECKING:
    from sluice.etl.settings import Settings


@click.command("takeover")
@click.argument(
    "drainer_toml",
    metavar="[DRAINER_TOML]",
    required=False,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--check",
    "check_only",
    is_flag=True,
    help=(
        "Only list what would stop or differ; nothing is written. With DRAINER_TOML: for that"
        " Drainer's settings."
    ),
)
@click.option(
    "--copied",
    "tables",
    metavar="SCHEMA.TABLE",
    multiple=True,
    help=(
        "Table without a key that you have made equal to the upstream at the checkpoint; may be"
        " repeated."
    ),
)
@json_option
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    drainer_toml: Path | None,
    check_only: bool,
    tables: tuple[str, ...],
    as_json: bool,
    config: str | None,
) -> int:
    """Take over the downstream from its current checkpoint, and let applying continue.

    Needed after applying has stopped because a Drainer or another pipeline wrote to the same
    downstream. Not needed the first time, if the Drainer was stopped before. Refuses with exit code
    1 while another writer may be active.

    With --check: connect to every server, list what would stop a takeover (FAIL, exit code 1) or
    differ afterwards (warn), and write nothing.
    """
    from sluice.etl.operate.takeover import mark_copied, take_over

    if drainer_toml is not None and not (check_only and config is None):
        raise click.UsageError("a drainer.toml goes with --check, and without --config")
    if as_json and not check_only:
        raise click.UsageError("--json goes with --check")
    if check_only:
        return _check(ctx, drainer_toml, config, as_json=as_json)
    click.echo(
        mark_copied(settings_of(ctx, config), tables)
        if tables
        else take_over(settings_of(ctx, config), partial(click.echo, err=True))
    )
    return 0


def _check(
    ctx: click.Context, drainer_toml: Path | None, config: str | None, *, as_json: bool
) -> int:
    from sluice.etl.operate.takeover_check import check_takeover

    settings, results = (
        _of_drainer(drainer_toml) if drainer_toml else (settings_of(ctx, config), [])
    )
    code = print_checks([*results, *check_takeover(settings)], as_json=as_json)
    if not as_json:
        click.echo("a takeover would stop" if code else "nothing stops a takeover")
    return code


def _of_drainer(file: Path) -> tuple[Settings, list[CheckResult]]:
    """Return the settings that a drainer.toml stands for, and a warning for each that is unused."""
    from sluice.etl.settings import parse_settings, read_drainer

    drainer = read_drainer(file)
    document = {"upstream": {}, "relay": {"url": "file:///var/lib/sluice/relay"}} | drainer.document
    document["upstream"] = {"pd-urls": "http://127.0.0.1:2379"} | document["upstream"]
    warnings = [CheckResult("settings", WARN, warning) for warning in drainer.warnings]
    return parse_settings(document, str(file)), warnings
