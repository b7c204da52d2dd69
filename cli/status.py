"""sluice status: running processes, their ports, and how far replication is."""

from __future__ import annotations

import json
from typing import Any

import click

from sluice.cli._garbage import collect_no_garbage
from sluice.cli._settings import choose_pipeline, config_option, settings_of
from sluice.cli._stack import stack_of
from sluice.cli._status_lines import AFTERWARDS, pipeline_lines
from sluice.errors import SluiceError


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON object.")
@config_option
@click.pass_context
def command(ctx: click.Context, *, as_json: bool, config: str | None) -> int:
    """Show which processes run and on which ports, the checkpoint and the lag.

    Works with a stopped stack, too.

    With a pipeline's settings (--config, SLUICE_CONFIG): its checkpoint and lag, what operators
    ordered, and its pumps.
    """
    collect_no_garbage(ctx)
    if not choose_pipeline(ctx, config).is_stack:
        from sluice.etl import operate

        pipeline = operate.status(settings_of(ctx, config))
        click.echo(
            json.dumps(pipeline, indent=1) if as_json else "\n".join(pipeline_lines(pipeline))
        )
        return _exit_code(pipeline)
    # the launchers of the stack take 0.2 s to import, which a pipeline doesn't wait for
    from sluice.cli._stack_status import collect, stack_text

    if choose_pipeline(ctx, config).path.exists():
        settings_of(ctx, config)  # prints which pipeline
    status = collect(stack_of(ctx))
    click.echo(json.dumps(status, indent=1) if as_json else stack_text(status))
    return _exit_code(status["operators"] or {}) or (_PASSES if status["dead"] else 0)


_PASSES = 3
_NOT_COMPARED = 1


def _exit_code(status: dict[str, Any]) -> int:
    """Return 4 if replication needs an operator, 3 if it waits for a server or a pump.

    Or if rows differ; 1 if a table could not be compared.

    Landing waits for a pump that is away, so a paused pump counts. It waits for ever if an error
    has ended each capture of a share of the tables; of several that are replicas of each other one
    is enough. A difference between them needs an operator.
    """
    failed = [
        failure for failure in status.get("failures") or () if failure["what"] not in AFTERWARDS
    ]
    pumps = status.get("pumps") or ()
    captures = [pump["capture"] for pump in pumps if pump.get("capture")]
    ended = [pump for pump in pumps if pump.get("capture") and pump["capture"].get("failure")]
    running = {
        pump["captured_share"] for pump in pumps if pump.get("capture") and pump not in ended
    }
    differ = [each for capture in captures for each in capture.get("replicas", {}).values() if each]
    is_over = any(pump["captured_share"] not in running for pump in ended)
    unequal = status.get("unequal") or ()
    rows_differ = any(table["differences"] for table in unequal)
    if status.get("stopped") or failed or status.get("blocked") or is_over or differ or rows_differ:
        return SluiceError.exit_code
    captured = [pump for pump in pumps if pump["captured_cluster_id"]]
    replicated = {pump["captured_share"] for pump in captured if pump["state"] == "online"}
    away = [
        pump
        for pump in pumps
        if pump["state"] == "paused"
        and not (pump in captured and pump["captured_share"] in replicated)
    ]
    # replication doesn't wait for the archive
    if set(status.get("errors") or ()) - {"archive"} or away or ended:
        return _PASSES
    return _NOT_COMPARED if unequal else 0
