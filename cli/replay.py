"""sluice replay: replay a recording into the running stack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluice.cli._stack import stack_of
from sluice.cli._suggestions import Choice
from sluice.etl.display_units import counted

if TYPE_CHECKING:
    from sluice.devstack import Stack


@click.command("replay")
@click.argument(
    "directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--until",
    metavar="LABEL|TS",
    help="Stop after the transactions of this snapshot or TSO [the last snapshot].",
)
@click.option(
    "--speed",
    metavar="N|max",
    default="max",
    show_default=True,
    help="Pace: 1 as recorded, 2 twice as fast, max without waiting.",
)
@click.option(
    "--strategy",
    type=Choice(["range", "hash", "score"]),
    default="range",
    show_default=True,
    help="How the pump client spreads transactions over the pumps.",
)
@click.option(
    "--patience",
    metavar="S",
    type=float,
    default=900.0,
    show_default=True,
    help="Give up after this many seconds without progress.",
)
@click.option(
    "--paused", is_flag=True,
    help="Leave landing and applying paused until `sluice resume`, to try `sluice bootstrap`"
    " first.",
)  # fmt: skip
@click.option(
    "--send-only", is_flag=True,
    help="Have the stand-in TiDB commit it, and touch nothing else: the pipeline is your own. The"
    " cluster must be fresh.",
)  # fmt: skip
@click.pass_context
def command(
    ctx: click.Context,
    directory: Path,
    until: str | None,
    speed: str,
    strategy: str,
    patience: float,
    *,
    paused: bool,
    send_only: bool,
) -> None:
    """Replay the recording DIR through the running stack (`sluice up`); wait until it is applied.

    Upstream and downstream begin fresh: the state of an earlier replay is removed. The stack keeps
    running afterwards.
    """
    if speed != "max":
        try:
            usable = float(speed) > 0
        except ValueError:
            usable = False
        if not usable:
            raise click.BadParameter("a number above 0, or max", param_hint="--speed")
    # with the stack's launchers, for which `--help` doesn't wait
    from sluice.cli._progress import ReplayProgress
    from sluice.devstack import replay
    from sluice.devstack.progress_view import ProgressView
    from sluice.devstack.recording import Recording
    from sluice.tidb import tso

    directory = directory.absolute()
    recording = Recording(directory)
    label, target = replay.target(recording, until)
    # Reads all of it: a recording that is damaged is refused before anything is cleared.
    total = sum(
        1
        for transaction in recording.transactions(recording.resolve(label)).values()
        if transaction.commit_ts
    )
    stack = stack_of(ctx)
    if send_only:
        if paused:
            raise click.UsageError("--send-only leaves pipelines alone: leave out --paused", ctx)
        replay.send(stack, label, speed, strategy)
        replay.wait_committed(stack)
        click.echo(f"committed in TiDB: {counted(total, 'transaction')} through {tso.text(target)}")
        return
    with ReplayProgress() as display:
        replay.clear(stack, directory, display.say, paused=paused)
        site = stack.site()
        view = ProgressView(site)
        display.say(
            f"replaying {directory} to"
            f" {label if isinstance(label, str) and not label.isdigit() else 'the end'},"
            f" {tso.text(target)}"
        )
        try:
            replay.send(stack, label, speed, strategy)
            if paused:
                replay.wait_sent(
                    stack, view, lambda progress: display.show(str(label or "all"), total, progress)
                )
                click.echo(
                    f"sent: {counted(total, 'transaction')}; landing and applying wait for"
                    " `sluice resume`"
                )
                _say_where(stack)
                return
            done = replay.wait_applied(
                stack,
                view,
                replay.ReplayGoal(target),
                replay.ReplayObserver(
                    lambda progress: display.show(str(label or "all"), total, progress), display.say
                ),
                replay.StallTimeouts(give_up_s=patience),
            )
        finally:
            view.close()
    click.echo(
        f"applied: {counted(done.applied, 'transaction')},"
        f" {counted(done.changes_applied, 'row change')},"
        f" {done.ddls_applied} DDL statements in {counted(done.windows_applied, 'window')};"
        " checkpoint"
        f" {done.checkpoint}"
    )
    _say_where(stack)


def _say_where(stack: Stack) -> None:
    from sluice.devstack.launch import client_file

    click.echo(f"MariaDB: mariadb --defaults-file={client_file(stack.site())}")
