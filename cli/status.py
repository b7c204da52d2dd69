"""sluice status: what runs, where, and how far replication is."""

from __future__ import annotations

import json
from typing import Any

import click

from cli._stack import stack_of, tso_text
from embedded import LOOPBACK, PUMP_NAMES, Stack, View, airflow_url, password_file


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON object.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Say what runs, where it can be reached, and how far replication is. Works with the stack down, too."""
    status = collect(stack_of(ctx))
    click.echo(json.dumps(status, indent=1) if as_json else _text(status))


def collect(stack: Stack) -> dict[str, Any]:
    """Everything `sluice status --json` prints; what isn't known is null. Timestamps are TSOs, lag is in ms."""
    state = stack.state()
    parts = {
        part.name: {"state": part.state, "pid": part.pid, "host": part.host, "ports": part.ports, "log": part.log}
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
        "spark": None,
        "replication": None,
    }
    if not ports:
        return result
    site = stack.site()
    result["downstream"] = {"host": LOOPBACK, "port": ports["mariadb"], "user": "root"}
    result["airflow"] = {"url": airflow_url(ports["airflow"]), "user": "admin", "password_file": str(password_file(stack.home))}
    result["upstream"] = {
        "pd_url": f"http://{LOOPBACK}:{ports['cluster']}",
        "etcd_url": f"http://{LOOPBACK}:{ports['etcd-client']}",
        "control_url": f"http://{LOOPBACK}:{ports['cluster-control']}",
        "recording": str(site.recording),
    }
    result["pumps"] = [f"{LOOPBACK}:{ports[name]}" for name in PUMP_NAMES]
    result["spark"] = {"remote": f"sc://{LOOPBACK}:{ports['spark']}"}
    view = View(site)
    try:
        progress = view.progress()
    finally:
        view.close()
    result["replication"] = {
        "window": {"lo": progress.window[0], "hi": progress.window[1]} if progress.window else None,
        "checkpoint": progress.checkpoint,
        "lag_ms": progress.lag_ms,
        "transactions": {"received": progress.received, "landed": progress.landed, "applied": progress.applied},
        "windows": {"landed": progress.windows_landed, "applied": progress.windows_applied},
        "row_changes_applied": progress.changes_applied,
        "ddls_applied": progress.ddls_applied,
    }
    return result


def _text(status: dict[str, Any]) -> str:
    lines = [f"stack in {status['home']}"]
    for name, part in status["parts"].items():
        where = ", ".join(f"{purpose} {part['host']}:{port}" for purpose, port in part["ports"].items())
        note = f"DEAD, see {part['log']}; `sluice up` starts it again" if part["state"] == "dead" else part["state"]
        pid = f"pid {part['pid']}" if part["pid"] else ""
        lines.append(f"  {name:<22} {note:<8} {pid:<11} {where}".rstrip())
    if not status["running"]:
        return "\n".join([*lines, "nothing runs; `sluice up` starts it"])
    airflow, downstream = status["airflow"], status["downstream"]
    lines.append(f"Airflow     {airflow['url']}  user {airflow['user']}, password in {airflow['password_file']}")
    lines.append(f"downstream  {downstream['host']}:{downstream['port']} user {downstream['user']}, no password")
    replication = status["replication"]
    transactions, window = replication["transactions"], replication["window"]
    checkpoint = replication["checkpoint"]
    lines.append(
        "transactions  "
        + ", ".join(f"{'?' if count is None else f'{count:,}'} {what}" for what, count in transactions.items())
    )
    lines.append("window      " + (f"({window['lo']}, {window['hi']}]" if window else "none landed yet"))
    if checkpoint is None:
        lines.append("checkpoint  unknown: MariaDB doesn't answer")
    else:
        lines.append(f"checkpoint  {tso_text(checkpoint) if checkpoint else 'none yet'}")
    lag = replication["lag_ms"]
    lines.append(f"lag         {'unknown' if lag is None else f'{lag} ms'}")
    return "\n".join(lines)
