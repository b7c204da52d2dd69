"""sluice capture: check whether a pipeline can go on from TiKV's changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sluice.cli._check_results import json_option, print_checks
from sluice.cli._settings import config_option, settings_of
from sluice.errors import FAIL, OK, CheckResult, SluiceError, ours
from sluice.tidb import tso

if TYPE_CHECKING:
    from sluice.etl.settings import Settings


@click.command("capture")
@click.option(
    "--check",
    "check_only",
    is_flag=True,
    required=True,
    help="List what speaks for and against it; nothing lasting is changed.",
)
@json_option
@config_option
@click.pass_context
def command(ctx: click.Context, *, check_only: bool, as_json: bool, config: str | None) -> int:
    """Check whether the pipeline can continue from TiKV's changes.

    A capture begins at the present while pumps with binlogs serve the pipeline, and where it has
    come to if there is none. A pipeline without a position begins with a copy, and its capture at
    the present. Exit code 1 if it can't; each failure has a hint. A service safe point is set at
    PD, and removed again.
    """
    from sluice.pump_service.capture.check import check_capture
    from sluice.tidb import EtcdClient, PDClient, Registry

    settings = settings_of(ctx, config)
    urls, tls = settings.upstream.pd_urls, settings.upstream.tls()
    with PDClient(urls, tls=tls) as pd, EtcdClient(urls, tls=tls) as etcd:
        online = [pump for pump in Registry(etcd).pumps() if pump.state == "online"]
        # Landing reads binlogs until it has come to where a capture begins.
        has_binlogs = settings.upstream.source != "capture" and any(
            pump.captured_cluster_id is None for pump in online
        )
        capturing = [pump.node_id for pump in online if pump.captured_cluster_id == pd.cluster_id]
        start_ts, results = 0, []
        if not has_binlogs:
            start_ts, position = _position(settings, pd.cluster_id)
            results.append(position)
        results += check_capture(pd, etcd, tls, start_ts or pd.tso())
    code = print_checks(results, as_json=as_json, start_ts=start_ts)
    if code or as_json:
        return code
    if has_binlogs:
        click.echo("a capture can begin: [capture] without start-ts, beside the pumps with binlogs")
    elif capturing:
        click.echo(f"captured by {', '.join(capturing)}: another pump needs no start-ts")
    elif start_ts:
        click.echo(f"a capture can begin here: [capture] start-ts = {start_ts}")
    else:
        click.echo("a capture can begin: [capture] without start-ts, then `sluice bootstrap`")
    return 0


def _position(settings: Settings, cluster_id: int) -> tuple[int, CheckResult]:
    """Return the TSO behind which the pipeline needs changes, 0 if it has none, and the result.

    Landing goes on behind its last window; before the first one, behind the checkpoint.
    """
    from sluice.etl.operate import read_checkpoint_in_time

    try:
        last = settings.open_relay().last()
        if last is not None:
            return last.hi, CheckResult("position", OK, f"landed through {tso.text(last.hi)}")
        checkpoint = read_checkpoint_in_time(settings.target, cluster_id)
    except (SluiceError, OSError) as error:
        return 0, CheckResult("position", FAIL, f"it can't be read: {error}", ours(error).hint)
    if checkpoint is None:
        return 0, CheckResult("position", OK, "none, so the capture begins at the present")
    ts = checkpoint.commit_ts
    return ts, CheckResult("position", OK, f"the downstream's checkpoint at {tso.text(ts)}")
