"""sluice status: running processes, their ports, and how far replication is."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from sluice.cli._settings import choose_pipeline, config_option, settings_of
from sluice.cli._stack import stack_of
from sluice.cli.jobs import job_lines
from sluice.cli.overrides import lines as override_lines
from sluice.devstack import LOOPBACK, PUMP_NAMES, ProgressView, Stack, airflow_url, password_file
from sluice.devstack.launch import client_file
from sluice.errors import SluiceError
from sluice.tidb import tso


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
    if not choose_pipeline(ctx, config).is_stack:
        from sluice.etl import operate

        pipeline = operate.status(settings_of(ctx, config))
        click.echo(
            json.dumps(pipeline, indent=1) if as_json else "\n".join(_pipeline_lines(pipeline))
        )
        return _exit_code(pipeline)
    status = collect(stack_of(ctx))
    click.echo(json.dumps(status, indent=1) if as_json else _text(status))
    return _exit_code(status["operators"] or {}) or (_PASSES if status["dead"] else 0)


_PASSES = 3
_MAX_TABLES_SHOWN = 20


def _exit_code(status: dict[str, Any]) -> int:
    """Return 4 if replication needs an operator, 3 if it waits for a server or a pump.

    Landing waits for a pump that is away, so a paused pump counts. It waits for ever if an error
    has ended each capture of a share of the tables; of several that are replicas of each other one
    is enough. A difference between them needs an operator.
    """
    failed = [
        failure for failure in status.get("failures") or () if failure["what"] not in _AFTERWARDS
    ]
    pumps = status.get("pumps") or ()
    captures = [pump["capture"] for pump in pumps if pump.get("capture")]
    ended = [pump for pump in pumps if pump.get("capture") and pump["capture"].get("failure")]
    running = {
        pump["captured_share"] for pump in pumps if pump.get("capture") and pump not in ended
    }
    differ = [each for capture in captures for each in capture.get("replicas", {}).values() if each]
    is_over = any(pump["captured_share"] not in running for pump in ended)
    if status.get("stopped") or failed or status.get("blocked") or is_over or differ:
        return SluiceError.exit_code
    captured = [pump for pump in pumps if pump["captured_cluster_id"]]
    replicated = {pump["captured_share"] for pump in captured if pump["state"] == "online"}
    away = [
        pump
        for pump in pumps
        if pump["state"] == "paused"
        and not (pump in captured and pump["captured_share"] in replicated)
    ]
    return _PASSES if status.get("errors") or away or ended else 0


def collect(stack: Stack) -> dict[str, Any]:
    """Collect what `sluice status --json` prints; unknown values are null.

    Timestamps are TSOs, lag is in ms.
    """
    state = stack.state()
    parts = {
        part.name: {
            "state": part.state,
            "pid": part.pid,
            "host": part.host,
            "ports": part.ports,
            "log": part.log,
        }
        for part in stack.status()
    }
    ports = state.ports
    result: dict[str, Any] = {
        "home": str(stack.home),
        "running": any(part["state"] == "running" for part in parts.values()),
        "dead": [name for name, part in parts.items() if part["state"] == "dead"],
        "parts": parts,
        "downstream": None,
        "airflow": None,
        "upstream": None,
        "pumps": [],
        "captures": {},
        "spark": None,
        "replication": None,
        "operators": None,
    }
    if not ports:
        return result
    from sluice.etl import load_settings, operate
    from sluice.etl.operate.node_http import captures

    site = stack.site()
    result["downstream"] = {"host": LOOPBACK, "port": ports["mariadb"], "user": "root"} | {
        "option_file": str(client_file(site)),
        "password_file": str(site.secret("mariadb")),
    }
    result["airflow"] = {
        "url": airflow_url(ports["airflow"]),
        "user": "admin",
        "password_file": str(password_file(stack.home)),
    }
    result["upstream"] = {
        "pd_url": f"http://{LOOPBACK}:{ports['cluster']}",
        "etcd_url": f"http://{LOOPBACK}:{ports['etcd-client']}",
        "control_url": f"http://{LOOPBACK}:{ports['cluster-control']}",
        "sql": {"host": LOOPBACK, "port": ports["cluster-sql"], "user": "root"},
        "recording": str(site.recording),
    }
    result["pumps"] = [f"{LOOPBACK}:{ports[name]}" for name in PUMP_NAMES]
    running = [name for name in PUMP_NAMES if parts.get(name, {}).get("state") == "running"]
    asked = captures([f"{LOOPBACK}:{ports[name]}" for name in running], None)
    result["captures"] = {
        name: found for name, found in zip(running, asked, strict=True) if found is not None
    }
    result["spark"] = {"remote": f"sc://{LOOPBACK}:{ports['spark']}"}
    view = ProgressView(site)
    try:
        progress = view.progress()
    finally:
        view.close()
    result["replication"] = {
        "window": {"lo": progress.window[0], "hi": progress.window[1]} if progress.window else None,
        "checkpoint": progress.checkpoint,
        "lag_ms": progress.lag_ms,
        "transactions": {
            "received": progress.received,
            "landed": progress.landed,
            "applied": progress.applied,
        },
        "windows": {"landed": progress.windows_landed, "applied": progress.windows_applied},
        "row_changes_applied": progress.changes_applied,
        "ddls_applied": progress.ddls_applied,
    }
    result["operators"] = operate.orders(load_settings(site.config))
    return result


def _text(status: dict[str, Any]) -> str:
    lines = [f"stack in {status['home']}"]
    for name, part in status["parts"].items():
        where = ", ".join(
            f"{purpose} {part['host']}:{port}" for purpose, port in part["ports"].items()
        )
        note = (
            f"DEAD, see {part['log']}; `sluice up` starts it again"
            if part["state"] == "dead"
            else part["state"]
        )
        pid = f"pid {part['pid']}" if part["pid"] else ""
        lines.append(f"  {name:<22} {note:<8} {pid:<11} {where}".rstrip())
    if not status["running"]:
        return "\n".join([*lines, "nothing runs; `sluice up` starts it"])
    airflow, downstream = status["airflow"], status["downstream"]
    lines.append(
        f"Airflow     {airflow['url']}  user {airflow['user']}, password in"
        f" {airflow['password_file']}"
    )
    lines.append(f"downstream  mariadb --defaults-file={downstream['option_file']}")
    for name, capture in status["captures"].items():
        first, *more = _capture_lines(capture)
        lines += [f"capture     {name} {first}", *(f"            {line}" for line in more)]
    replication = status["replication"]
    transactions, window = replication["transactions"], replication["window"]
    checkpoint = replication["checkpoint"]
    lines.append(
        "transactions  "
        + ", ".join(
            f"{'?' if count is None else f'{count:,}'} {what}"
            for what, count in transactions.items()
        )
    )
    lines.append(
        "window      " + (f"({window['lo']}, {window['hi']}]" if window else "none landed yet")
    )
    if checkpoint is None:
        lines.append("checkpoint  unknown: MariaDB doesn't answer")
    else:
        lines.append(f"checkpoint  {tso.text(checkpoint) if checkpoint else 'none yet'}")
    lag = replication["lag_ms"]
    lines.append(f"lag         {'unknown' if lag is None else f'{lag} ms'}")
    return "\n".join([*lines, *_order_lines(status["operators"])])


_AFTERWARDS = {
    "archive": "unpause the DAG archive",
    "compact": "unpause the DAG archive",
    "retain": "the next run of the DAG archive tries again",
}
"""The command to run after following the hint; for all other tasks it is `sluice resume`."""


def _order_lines(orders: dict[str, Any]) -> list[str]:
    lines = [f"STOPPED     {orders['stopped']}"] if orders["stopped"] else []
    for failure in orders["failures"]:
        lines.append(
            f"STOPPED     {failure['what']}, at {tso.text(tso.compose(failure['made_ms']))}:"
            f" {failure['message']}"
        )
        lines.append(
            f"hint        {failure['hint']}; then"
            f" {_AFTERWARDS.get(failure['what'], '`sluice resume`')}"
        )
    paused = [what for what in ("land", "apply") if orders[f"{what}_paused"]]
    if paused:
        lines.append(f"paused      {' and '.join(paused)}; `sluice resume` goes on")
    if orders["apply_until_ts"] is not None:
        lines.append(f"until       {tso.text(orders['apply_until_ts'])}; `sluice resume` goes on")
    for job in orders["jobs"]:
        first, *more = job_lines(job)
        lines += [f"job         {first}", *(f"            {line}" for line in more)]
    for override in orders["overrides"]:
        first, *more = override_lines(override)
        lines += [f"decided     {first}", *(f"            {line.strip()}" for line in more)]
    return lines


def _pipeline_lines(status: dict[str, Any]) -> list[str]:
    relay, checkpoint = status["relay"], status["checkpoint"]
    landed = f"{relay['lo']} to {tso.text(relay['hi'])}" if relay["hi"] else "nothing yet"
    source = f", from {status['landed_from']}" if status["landed_from"] else ""
    lines = [f"relay log   {relay['url']}", f"landed      {landed}{source}"]
    if "downstream" in status["errors"]:
        lines.append(f"checkpoint  unknown: {status['errors']['downstream']}")
    else:
        note = (
            ""
            if status["consistent"] in (None, True)
            else ", changes after it may be downstream already"
        )
        if status["written_by"]:
            note += (
                f", written by {status['written_by']}, not by this pipeline: see `sluice takeover`"
            )
        lines.append(f"checkpoint  {tso.text(checkpoint) + note if checkpoint else 'none yet'}")
    if checkpoint:
        waiting = status["landed_not_applied_ms"]
        behind = f", {waiting / 1000:,.1f} s of it landed and not applied" if waiting else ""
        lines.append(f"lag         {status['lag_ms'] / 1000:,.1f} s behind the clock{behind}")
    if status["ddl_under_way"]:
        lines.append(f"DDL         the one at commit_ts {status['ddl_under_way']} was begun")
    if status["blocked"]:
        lines.append(
            f"blocked     {status['blocked']['text'][:300]}; `sluice accept"
            f" {status['blocked']['id']}` or `sluice txn skip`"
        )
    lines += _order_lines(status)
    for table in status["unequal"][:_MAX_TABLES_SHOWN]:
        why = (
            table["problem"] or f"{table['differences']:,} rows differ; `sluice verify` shows them"
        )
        lines.append(f"unequal     {table['table']}: {why}")
    if len(status["unequal"]) > _MAX_TABLES_SHOWN:
        lines.append(f"            and {len(status['unequal']) - _MAX_TABLES_SHOWN} more tables")
    if "upstream" in status["errors"]:
        lines.append(f"pumps       unknown: {status['errors']['upstream']}")
    for pump in status["pumps"]:
        lines.append(
            f"pump        {pump['node_id']:<24} {pump['host']:<22} {pump['state']:<8} through"
            f" {pump['max_commit_ts']}"
        )
        lines += [f"            {line}" for line in _capture_lines(pump.get("capture"))]
    return lines


def _capture_lines(capture: dict[str, Any] | None) -> list[str]:
    from sluice.etl.operate.node_http import capture_lines

    return capture_lines(capture, time.time_ns() // 1_000_000) if capture else []
