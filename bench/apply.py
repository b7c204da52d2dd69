"""Measure how fast a backlog is landed, and how fast a landed backlog is applied.

Both go through Airflow and Spark into MariaDB at its default durability.

The whole recording is sent to the pumps while the pipeline is paused, and its traffic some times
more if it is sysbench's (`sluice.bench.backlog.again`). Then all of it is landed, in windows of at
most 1,000 transactions, while applying is still paused. Then it is applied with the default
limits, and the checkpoint is watched. Each rate is that of the row changes between the first
window (checkpoint) and the last: the first, which pays for warming up, is left out. CPU time is
that of every process meanwhile, which is what to compare on a busy machine. At the end the
downstream is compared with the recording's last snapshot.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from sluice.bench import backlog
from sluice.bench.processes import Peak, cpu_s, replicating
from sluice.devstack import LOOPBACK, Stack, replay
from sluice.devstack.compare import compare
from sluice.devstack.control import AirflowClient, ClusterControl
from sluice.devstack.fresh_stack import fresh_stack, wait_pipeline
from sluice.devstack.launch import PUMP_NAMES, connect
from sluice.devstack.progress_view import CheckpointTrace, ProgressView
from sluice.devstack.state import StackError
from sluice.relay import Control, RelayLog
from sluice.tidb import PDClient

RECORDING = "bench/recordings/sysbench"
SETTINGS = "\n[window]\nmax-transactions = 1000\n"
MASKED = "c"
"""The column of the recording's tables that a rule masks: 110 digits and 9 other characters."""
_MASKS = {name: f'"{name}"' for name in ("null", "hash", "digits", "email")} | {
    "partial": "{ partial = 4 }"
}
RULES = ("rows", *_MASKS)
"""Rules whose cost is measured: all rows selected by a condition, or a column masked."""
_PATIENCE_S = 600.0


@dataclass(slots=True)
class ApplyResult:
    """Row changes are the upstream's (before anything cancels out).

    Stages are in ms, summed over the measured batches.
    """

    recording: str
    rule: str = ""
    """One of RULES, "" for none."""
    rows_per_s: float = 0.0
    measured_changes: int = 0
    measured_s: float = 0.0
    cpu_us: dict[str, float] = field(default_factory=dict)
    """CPU time a row change, by process."""
    batches: int = 0
    net_rows: int = 0
    stages_ms: dict[str, float] = field(default_factory=dict)
    land_rows_per_s: float = 0.0
    """Rate of landed rows from the first landed window to the last."""
    land_changes: int = 0
    land_stages_ms: dict[str, float] = field(default_factory=dict)
    rss_mib: dict[str, int] = field(default_factory=dict)
    """The most that the largest process of a kind took, while applying."""
    differences: int = 0


def rule_settings(rule: str, folder: Path) -> str:
    """Return the settings of one of RULES; a new key of masks is written to `folder`."""
    if rule == "rows":
        return f"\n[[filter.rows]]\ntables = ['*.*']\nwhere = \"k >= 0 AND {MASKED} <> ''\"\n"
    folder.mkdir(parents=True, exist_ok=True)
    key = folder.absolute() / "mask.key"
    key.write_text(secrets.token_hex(32) + "\n", encoding="utf-8")
    return (
        f'\n[filter.mask]\nkey-file = "{key}"\nrelay-log = "clear"\n'
        f"[[filter.columns]]\ntables = ['*.*']\nmask = {{ {MASKED} = {_MASKS[rule]} }}\n"
    )


def measure(
    stack: Stack, directory: Path, repeated: int, report: Callable[[str], None], rule: str = ""
) -> ApplyResult:
    """Run the benchmark in a stack of its own.

    `repeated`: how many times the recording's traffic comes again. `rule`: one of RULES, which the
    settings of `stack` have; masked columns aren't compared in the end. Raises StackError or
    RecordingError.
    """
    recording, values = backlog.load(directory)
    label, target = replay.target(recording, None)
    result = ApplyResult(recording=recording.name, rule=rule)
    relay = RelayLog.open((stack.home / "relay").as_uri())
    with fresh_stack(stack, directory, report):
        site = stack.site()
        relay.change_control(lambda _: Control(land_paused=True, apply_paused=True))
        wait_pipeline(stack, AirflowClient(stack.home, site.ports["airflow"]))
        report("sending the whole recording, the pipeline is paused")
        control = ClusterControl(site.ports["cluster-control"])
        replay.send(stack, label, "max", "range")
        _wait(lambda: replay.is_sent(control), stack, "sent")
        if more := backlog.again(values, repeated):
            target = _send_again(stack, more)
        report("sent; landing")
        relay.change_control(lambda _: Control(apply_paused=True))
        view = ProgressView(site)
        trace = CheckpointTrace(site, interval_s=0.01)
        with contextlib.closing(view), Peak(lambda: _rss(stack)) as peak:
            _wait(lambda: _landed(view, target), stack, "landed")
            time.sleep(1)
            report("landed; applying")
            trace.start()
            relay.change_control(lambda _: Control())
            seen = _watch(lambda: view.progress().checkpoint or 0, target, stack)
        trace.stop()
        result.rss_mib = {name: round(size / 2**20) for name, size in peak.items()}
        _rate(result, relay, trace.moves(), target)
        _cpu(result, relay, seen)
        _stages(result, stack)
        with contextlib.closing(connect(site)) as database:
            masked = frozenset({MASKED} if rule in _MASKS else ())
            result.differences = len(
                compare(directory / "snapshots" / str(label), database, masked).differences
            )
    return result


def _send_again(stack: Stack, values: list[tuple[bytes, int]]) -> int:
    """Write transactions into the pumps at fresh timestamps; the last commit_ts."""
    ports = stack.site().ports
    url = f"http://{LOOPBACK}:{ports['cluster']}"
    with PDClient(url) as pd:
        timestamps = backlog.Timestamps(url, pd.cluster_id)
        pumps = [f"{LOOPBACK}:{ports[name]}" for name in PUMP_NAMES]
        wanted = sum(changes for _, changes in values)
        written = backlog.write(pumps, timestamps, pd.cluster_id, values, wanted)
        timestamps.close()
    return written.last


def _rss(stack: Stack) -> dict[str, int]:
    return {
        name: max((each.memory_info().rss for each in processes), default=0)
        for name, processes in replicating(stack).items()
        if name != "MariaDB"
    }


def _landed(view: ProgressView, target: int) -> bool:
    window = view.progress().window
    return window is not None and window[1] >= target


@dataclass(frozen=True, slots=True)
class _Seen:
    """A checkpoint (TSO) and the CPU time of each kind of process.

    The CPU time (s) is what they had taken when the checkpoint was seen.
    """

    checkpoint: int
    cpu_s: dict[str, float]


def _watch(checkpoint: Callable[[], int], target: int, stack: Stack) -> list[_Seen]:
    """Wait until the checkpoint is at the target; where it was meanwhile, each place once."""
    seen = [_Seen(0, {})]

    def reached() -> bool:
        at = checkpoint()
        if at > seen[-1].checkpoint:
            # a worker came to its end while it was looked at
            with contextlib.suppress(psutil.NoSuchProcess):
                seen.append(_Seen(at, cpu_s(stack)))
        return at >= target

    _wait(reached, stack, "applied")
    return seen[1:]


def _wait(reached: Callable[[], bool], stack: Stack, what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    relay = RelayLog.open((stack.home / "relay").as_uri())
    while not reached():
        for failure in relay.failures.list():
            raise StackError(
                f"`{failure.what}` has stopped before everything was {what}: {failure.message}"
            )
        if time.monotonic() > deadline:
            raise StackError(
                f"not everything was {what} within {_PATIENCE_S:.0f} s. {replay.hint(stack)}"
            )
        time.sleep(0.2)


def _rate(result: ApplyResult, relay: RelayLog, moves: list[tuple[int, int]], target: int) -> None:
    """Compute the rates from the first checkpoint that came with row changes to the target's."""
    windows = list(relay.windows(0, moves[-1][0]))
    landed = [window for window in windows if window.changes]
    for window in landed[1:]:
        result.land_changes += window.changes
        for stage, milliseconds in window.timings_ms.items():
            result.land_stages_ms[stage] = round(
                result.land_stages_ms.get(stage, 0.0) + milliseconds, 1
            )
    if len(landed) > 1:
        result.land_rows_per_s = result.land_changes / (
            (landed[-1].landed_ms - landed[0].landed_ms) / 1000
        )
    firsts = [move for move in moves if sum(w.changes for w in windows if w.hi <= move[0]) > 0]
    lasts = [move for move in moves if move[0] >= target]
    if not firsts or not lasts or lasts[0][1] <= firsts[0][1]:
        raise StackError(
            "the recording was applied in a single step: there is nothing to measure between"
            " checkpoints"
        )
    (first_ts, first_ms), (last_ts, last_ms) = firsts[0], lasts[0]
    result.measured_changes = sum(
        window.changes for window in windows if first_ts < window.hi <= last_ts
    )
    result.measured_s = (last_ms - first_ms) / 1000
    result.rows_per_s = result.measured_changes / result.measured_s


def _cpu(result: ApplyResult, relay: RelayLog, seen: list[_Seen]) -> None:
    """Return CPU time between the first checkpoint with row changes behind it and the last."""
    changes = [sum(window.changes for window in relay.windows(0, each.checkpoint)) for each in seen]
    began = next((i for i, count in enumerate(changes) if count), len(seen) - 1)
    if (count := changes[-1] - changes[began]) > 0:
        before, after = seen[began].cpu_s, seen[-1].cpu_s
        result.cpu_us = {
            name: round((after[name] - before[name]) * 1e6 / count, 2) for name in after
        }


def _stages(result: ApplyResult, stack: Stack) -> None:
    """Sum the stages that the apply task logged for its batches behind those of the first line."""
    reports: dict[int, dict[str, Any]] = {}
    for log in (stack.home / "airflow" / "logs").glob(
        "dag_id=sluice_replicate/*/task_id=apply/*.log"
    ):
        for line in log.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, KeyError, AttributeError):
                event = json.loads(line)["event"]
                if event.startswith("applied {"):
                    batch = json.loads(event.removeprefix("applied "))
                    reports[batch["hi"]] = batch
    warm = [batch for _, batch in sorted(reports.items()) if batch["changes"]][1:]
    for batch in warm:
        result.batches += batch["batches"]
        result.net_rows += batch["rows"]
        for stage, milliseconds in batch["stages_ms"].items():
            result.stages_ms[stage] = round(result.stages_ms.get(stage, 0.0) + milliseconds, 1)
