"""sluice handover: leave the downstream to a Drainer."""

from __future__ import annotations

from functools import partial

import click

from sluice.cli._settings import config_option, settings_of
from sluice.tidb import tso


@click.command("handover")
@click.option(
    "--to-drainer",
    is_flag=True,
    help=(
        "Required, so that the command isn't run by mistake: the original's Drainer is the only"
        " target."
    ),
)
@click.option(
    "--wait",
    "wait_s",
    metavar="S",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    help="Seconds to wait for writes in progress.",
)
@config_option
@click.pass_context
def command(ctx: click.Context, *, to_drainer: bool, wait_s: float, config: str | None) -> None:
    """Hand the downstream over to a Drainer.

    Wait until this pipeline no longer writes there, leave a checkpoint from which the Drainer
    continues, and print what to do next. Afterwards this pipeline refuses to write, until `sluice
    takeover`.
    """
    from sluice.etl.operate.handover import hand_over

    if not to_drainer:
        raise click.UsageError("--to-drainer is missing: `sluice handover --to-drainer`")
    done = hand_over(settings_of(ctx, config), partial(click.echo, err=True), wait_s)
    click.echo(
        f"handed over: {done.place} is complete through {tso.text(done.commit_ts)}, and nothing of"
        " this pipeline writes there any more. Next:"
    )
    for number, step in enumerate(done.next_steps, 1):
        click.echo(f"  {number}. {step}")
