"""Format a pipeline's state and its orders for people."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from sluice.cli.jobs import job_lines
from sluice.cli.overrides import lines as override_lines
from sluice.etl.display_units import counted, format_size
from sluice.tidb import tso
from sluice.tidb.table_name import first_of

__all__ = ["AFTERWARDS", "assurance_lines", "capture_lines", "order_lines", "pipeline_lines"]

_MAX_TABLES_SHOWN = _MAX_TOPICS_SHOWN = 20

AFTERWARDS = {
    "archive": "unpause the DAG archive",
    "compact": "unpause the DAG archive",
    "retain": "the next run of the DAG archive tries again",
}
"""The command to run after following the hint; for all other tasks it is `sluice resume`."""


def order_lines(orders: dict[str, Any]) -> list[str]:
    """Return what operators asked for and what waits for them, by line."""
    lines = [f"STOPPED     {orders['stopped']}"] if orders["stopped"] else []
    for failure in orders["failures"]:
        lines.append(
            f"STOPPED     {failure['what']}, at {tso.text(tso.compose(failure['made_ms']))}:"
            f" {failure['message']}"
        )
        lines.append(
            f"hint        {failure['hint']}; then"
            f" {AFTERWARDS.get(failure['what'], '`sluice resume`')}"
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


def assurance_lines(status: dict[str, Any]) -> list[str]:
    """Return what verifications found, which tables aren't equal, and what can be restored."""
    from sluice.etl.operate.assurance import restorable_text, verified_text

    differing = map(_why_unequal, status["unequal"])
    return [
        f"verified    {verified_text(status['verified'])}",
        *_first_lines("unequal", differing, _MAX_TABLES_SHOWN, "tables"),
        f"restorable  {restorable_text(status['restorable'])}",
    ]


def _why_unequal(table: dict[str, Any]) -> str:
    differ = counted(table["differences"], "row differs", "rows differ")
    rows = f"{differ}; `sluice verify` shows them"
    return f"{table['table']}: {table['problem'] or rows}"


def _why_outdated(table: dict[str, Any]) -> str:
    return (
        f"{table['table']} follows former ones in rows from before {table['since_ts']}"
        f" ({table['why']}): `{table['command']}`"
    )


def pipeline_lines(status: dict[str, Any]) -> list[str]:
    """Return the document of `etl.operate.status`, by line."""
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
        lines.append(
            f"lag         {status['lag_ms'] / 1000:,.1f} s behind the upstream's clock{behind}"
        )
    lines += _topic_lines(status["topics"])
    if status["ddl_under_way"]:
        lines.append(f"DDL         the one at commit_ts {status['ddl_under_way']} was begun")
    if status["blocked"]:
        lines.append(
            f"blocked     {status['blocked']['text'][:300]}; `sluice accept"
            f" {status['blocked']['id']}` or `sluice txn skip`"
        )
    lines += order_lines(status)
    lines += assurance_lines(status)
    lines += _first_lines(
        "rules", map(_why_outdated, status["outdated"]), _MAX_TABLES_SHOWN, "tables"
    )
    if status["rules_changed"]:
        lines.append(
            "rules       changed since applying began: `sluice doctor` names tables that follow the"
            " former ones"
        )
    if "upstream" in status["errors"]:
        lines.append(f"pumps       unknown: {status['errors']['upstream']}")
    for pump in status["pumps"]:
        lines.append(
            f"pump        {pump['node_id']:<24} {pump['host']:<22} {pump['state']:<8} through"
            f" {pump['max_commit_ts']}"
        )
        lines += [f"            {line}" for line in capture_lines(pump.get("capture"))]
    return lines


def _topic_lines(topics: list[dict[str, Any]]) -> list[str]:
    """Return what topics got, those with errors and the largest first."""
    shown = sorted(topics, key=lambda topic: (-topic["errors"], -topic["bytes"]))
    return _first_lines("topic", map(_topic_text, shown), _MAX_TOPICS_SHOWN, "topics")


def _topic_text(topic: dict[str, Any]) -> str:
    errors = f", {counted(topic['errors'], 'error')} of sending" if topic["errors"] else ""
    messages = counted(topic["messages"], "message")
    return f"{topic['topic']}: {messages}, {format_size(topic['bytes'])}{errors}"


def _first_lines(label: str, texts: Iterable[str], limit: int, kind: str) -> list[str]:
    """Return a line for each of the first texts, and one for the number of the others."""
    return [
        f"{label if at < limit else '':12}{text}"
        for at, text in enumerate(first_of(texts, limit, kind))
    ]


def capture_lines(capture: dict[str, Any] | None) -> list[str]:
    """Return what a pump that captures from TiKV reports about itself; [] if it doesn't capture."""
    from sluice.etl.operate import node_http

    return node_http.capture_lines(capture, time.time_ns() // 1_000_000) if capture else []
