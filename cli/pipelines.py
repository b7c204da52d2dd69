"""sluice pipelines: list the pipelines with state and lag."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import click

from sluice.errors import SluiceError

if TYPE_CHECKING:
    from sluice.etl.settings.pipelines import NamedPipeline

_MAX_THREADS = 16


@click.command("pipelines")
@click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON object.")
def command(*, as_json: bool) -> int:
    """List all pipelines with state, lag, downstream, and the pipeline that lands for them.

    They come from $SLUICE_PIPELINES and $SLUICE_CONFIG. Exit code 4 if a settings file is wrong or
    a pipeline needs an operator.
    """
    from sluice.etl.settings.pipelines import pipelines

    found = pipelines()
    named = [pipeline for pipeline in found.values() if pipeline.path is not None]
    with ThreadPoolExecutor(_MAX_THREADS) as threads:
        listed = list(threads.map(_pipeline_status, named))
    problems = found.problems()
    if as_json:
        click.echo(json.dumps({"pipelines": listed, "problems": problems}, indent=1))
    else:
        click.echo("\n".join(_text(listed, problems)))
    return SluiceError.exit_code if problems or any(each["needs"] for each in listed) else 0


def _pipeline_status(pipeline: NamedPipeline) -> dict[str, Any]:
    """Return a pipeline's state as JSON values; ``needs``: whether an operator has to act."""
    from sluice.etl import operate

    row: dict[str, Any] = {
        "name": pipeline.name,
        "file": str(pipeline.path),
        "dag": pipeline.dag_id("replicate"),
        "state": "",
        "needs": False,
        "lag_ms": None,
        "checkpoint": None,
        "relay": None,
        "lands": None,
        "downstream": None,
    }
    try:
        settings = pipeline.settings
        row |= {"relay": settings.relay.url, "downstream": settings.downstream_name}
        status = operate.status(settings)
        row["lands"] = settings.open_relay().claimant("land")
    except (SluiceError, OSError) as error:
        return row | {"state": f"unknown: {error}", "needs": True}
    state, needs = _state(status)
    return row | {
        "state": state,
        "needs": needs,
        "lag_ms": status["lag_ms"],
        "checkpoint": status["checkpoint"],
    }


def _state(status: dict[str, Any]) -> tuple[str, bool]:
    """Return the state in words, and whether an operator has to act."""
    if status["stopped"]:
        return f"stopped: {status['stopped']}", True
    if stopped := [failure["what"] for failure in status["failures"]]:
        return f"stopped: {', '.join(stopped)}", True
    if status["blocked"]:
        return f"blocked: {status['blocked']['id']}", True
    if "downstream" in status["errors"]:
        return f"the downstream can't be asked: {status['errors']['downstream']}", True
    if paused := [what for what in ("land", "apply") if status[f"{what}_paused"]]:
        return f"paused: {', '.join(paused)}", False
    if status["apply_until_ts"] is not None:
        return f"goes to {status['apply_until_ts']} and waits there", False
    return ("applying" if status["checkpoint"] else "nothing applied yet"), False


def _text(listed: list[dict[str, Any]], problems: list[str]) -> list[str]:
    lines = []
    for each in listed:
        lag = "unknown" if each["lag_ms"] is None else f"{each['lag_ms'] / 1000:,.1f} s"
        lands = (
            f", landed by {_named(each['lands'])}"
            if each["lands"] not in (None, each["name"])
            else ""
        )
        lines += [
            f"{_named(each['name'])}: {each['state']}",
            f"    lag         {lag}",
            f"    relay log   {each['relay'] or '?'}{lands}",
            f"    downstream  {each['downstream'] or '?'}",
            f"    settings    {each['file']}, DAG {each['dag']}",
        ]
    lines += [f"WRONG: {problem}" for problem in problems]
    return lines or [
        "no pipeline: set SLUICE_PIPELINES to a folder of settings files, or SLUICE_CONFIG to one"
    ]


def _named(name: str) -> str:
    return name or "(without a name)"
