"""sluice run-until: apply up to an exact point in time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from sluice.cli._moments import MOMENT
from sluice.cli._settings import config_option, settings_of
from sluice.tidb import tso

if TYPE_CHECKING:
    from sluice.etl.settings import Settings

_POLL_INTERVAL_S = 0.5


@click.command("run-until")
@click.argument("moment", type=MOMENT)
@click.option("--follow", is_flag=True, help="Show progress until the timestamp is reached.")
@config_option
@click.pass_context
def command(ctx: click.Context, *, moment: int, follow: bool, config: str | None) -> None:
    """Apply up to exactly a commit timestamp, and wait there until `sluice resume`.

    It may be in the middle of a window. MOMENT is a TSO, before:TSO for just before that commit, a
    time ago such as 20m, or a date-time such as '2026-11-21 12:00 Europe/Berlin' (UTC without a
    zone). Everything committed until then is included.
    """
    from sluice.etl import operate

    settings = settings_of(ctx, config)
    click.echo(operate.run_until(settings, moment))
    if follow:
        _follow(settings, moment)


def _follow(settings: Settings, ts: int) -> None:
    from sluice.etl import operate

    shown: tuple[object, ...] = ()
    while True:
        now = operate.status(settings)
        at = now["checkpoint"]
        landed = now["relay"]["hi"]
        key = (at, landed, now["apply_paused"], now["apply_until_ts"], tuple(now["errors"].items()))
        if key != shown:
            shown = key
            where = tso.text(at) if at else "unknown"
            left = (
                ""
                if at is None
                else f", {max(0, tso.ms_between(at, ts)) / 1000:,.1f} s of upstream time to go"
            )
            errors = "".join(f"; {text}" for text in now["errors"].values())
            click.echo(f"checkpoint {where}{left}, landed through {landed}{errors}", err=True)
        if at is not None and at >= ts:
            return
        if now["apply_paused"] or now["apply_until_ts"] != ts:
            raise click.ClickException(
                "another order replaced this one meanwhile; `sluice status` shows it"
            )
        time.sleep(_POLL_INTERVAL_S)
