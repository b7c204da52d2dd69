"""Collect the state of the one-machine stack, and format it for people."""

from __future__ import annotations

from typing import Any

from sluice.cli._status_lines import assurance_lines, capture_lines, order_lines
from sluice.devstack import LOOPBACK, PUMP_NAMES, Stack, airflow_url, password_file
from sluice.devstack.launch import client_file
from sluice.tidb import tso

__all__ = ["collect", "stack_text"]


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
    from sluice.devstack import ProgressView
    from sluice.etl import load_settings, operate
    from sluice.etl.operate.assurance import known_restorable, verifications
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
    settings = load_settings(site.config)
    result["operators"] = {
        **operate.orders(settings),
        **verifications(settings.open_relay()),
        "restorable": known_restorable(settings),
    }
    return result


def stack_text(status: dict[str, Any]) -> str:
    """Return what `collect` returned, as text."""
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
        first, *more = capture_lines(capture)
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
    waits = "unknown" if lag is None else f"{lag:,} ms since the oldest commit not applied yet"
    lines.append(f"waiting     {waits}")
    operators = status["operators"]
    lines += [*order_lines(operators), *assurance_lines(operators)]
    return "\n".join(lines)
