"""sluice takeover: make the downstream this pipeline's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluice.cli._settings import config_option, settings_of

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
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    drainer_toml: Path | None,
    check_only: bool,
    tables: tuple[str, ...],
    config: str | None,
) -> int:
    """Take over the downstream from its current checkpoint, and let applying continue.

    Needed after applying has stopped because a Drainer or another pipeline wrote to the same
    downstream. Not needed the first time, if the Drainer was stopped before. Refuses with exit code
    1 while another writer may be active.

    With --check: connect to every server, list what would stop a takeover (exit code 1) or differ,
    and write nothing.
    """
    from sluice.etl.operate.takeover import mark_copied, take_over

    if drainer_toml is not None and not (check_only and config is None):
        raise click.UsageError("a drainer.toml goes with --check, and without --config")
    if check_only:
        return _check(_of_drainer(drainer_toml) if drainer_toml else settings_of(ctx, config))
    click.echo(
        mark_copied(settings_of(ctx, config), tables)
        if tables
        else take_over(settings_of(ctx, config), partial(click.echo, err=True))
    )
    return 0


def _of_drainer(file: Path) -> Settings:
    """Return the settings that a drainer.toml stands for; what has no meaning here is printed."""
    from sluice.etl.settings import parse_settings, read_drainer

    drainer = read_drainer(file)
    for warning in drainer.warnings:
        click.echo(f"differs  {warning}")
    document = {"upstream": {}, "relay": {"url": "file:///var/lib/sluice/relay"}} | drainer.document
    document["upstream"] = {"pd-urls": "http://127.0.0.1:2379"} | document["upstream"]
    return parse_settings(document, str(file))


def _check(settings: Settings) -> int:
    from sluice.etl.operate.takeover_check import STOPS, check_takeover

    stops = 0
    for finding in check_takeover(settings):
        stops += finding.kind == STOPS
        click.echo(f"{finding.kind:<8} {finding.text}")
    click.echo(
        "nothing stops a takeover"
        if not stops
        else f"{stops} thing{'s stop' if stops > 1 else ' stops'} a takeover"
    )
    return 1 if stops else 0
