"""sluice capture: check whether a pipeline can go on from TiKV's changes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from sluice.cli._settings import config_option, settings_of
from sluice.errors import RequestError

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
@click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON object.")
@config_option
@click.pass_context
def command(ctx: click.Context, *, check_only: bool, as_json: bool, config: str | None) -> int:
    """Check whether the pipeline can continue from TiKV's changes.

    A capture begins at the present while pumps with binlogs serve the pipeline, and where it has
    come to if there is none. Exit code 1 if it can't; each failure has a hint. A service safe point
    is set at PD, and removed again.
    """
    from sluice.pump_service.capture.check import check_capture
    from sluice.tidb import EtcdClient, PDClient, Registry

    settings = settings_of(ctx, config)
    urls, tls = settings.upstream.pd_urls, settings.upstream.tls()
    with PDClient(urls, tls=tls) as pd, EtcdClient(urls, tls=tls) as etcd:
        # Landing reads binlogs until it has come to where a capture begins.
        has_binlogs = settings.upstream.source != "capture" and any(
            pump.state == "online" and pump.captured_cluster_id is None
            for pump in Registry(etcd).pumps()
        )
        start_ts = pd.tso() if has_binlogs else _position_ts(settings, pd.cluster_id)
        results = list(check_capture(pd, etcd, tls, start_ts))
    failures = sum(bool(each.hint) for each in results)
    if as_json:
        found = {
            "start_ts": 0 if has_binlogs else start_ts,
            "results": [asdict(each) for each in results],
        }
        click.echo(json.dumps(found, indent=1))
        return 1 if failures else 0
    for each in results:
        click.echo(f"{'FAIL' if each.hint else 'ok':<5} {each.text}")
        if each.hint:
            click.echo(f"{'hint':<5} {each.hint}")
    if failures:
        click.echo(f"{failures} of {len(results)} checks failed")
    elif has_binlogs:
        click.echo("a capture can begin: [capture] without start-ts, beside the pumps with binlogs")
    else:
        click.echo(f"a capture can begin here: [capture] start-ts = {start_ts}")
    return 1 if failures else 0


def _position_ts(settings: Settings, cluster_id: int) -> int:
    """Return the TSO behind which the pipeline needs changes. Raises RequestError without one.

    Landing goes on behind its last window; before the first one, behind the checkpoint.
    """
    from sluice.etl.operate import read_checkpoint_in_time

    last = settings.open_relay().last()
    if last is not None:
        return last.hi
    checkpoint = read_checkpoint_in_time(settings.target, cluster_id)
    if checkpoint is None:
        raise RequestError(
            "the pipeline has no position: nothing is landed, and the downstream has no checkpoint."
            " A new capture needs none: leave [capture] start-ts away"
        )
    return checkpoint.commit_ts
