"""Leave the downstream to a Drainer: finish what is begun, and write no more.

Nothing here asks running tasks for anything. The checkpoint row decides which pipeline may write: a
pipeline commits nothing unless the row names it as the owner. So once the row names it no longer,
or another one, none of its processes writes any more, on whatever machine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sluice.errors import SluiceError, ours
from sluice.etl.downstream import Checkpoint, CheckpointMovedError
from sluice.etl.downstream.ownership import PipelineIdentity, downstream_name
from sluice.etl.downstream.sinks import open_sink, read_checkpoint
from sluice.etl.operate import commands
from sluice.etl.operate.commands import OperateError
from sluice.etl.operate.takeover import Report, replace_checkpoint
from sluice.etl.settings import Downstream, File, Kafka, Settings
from sluice.relay import RelayLog, StopMark
from sluice.tidb import tso

_POLL_INTERVAL_S = 0.5
_IDLE_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class HandoverResult:
    """A handover result; `commit_ts`: through where the downstream is complete.

    `place`: where the Drainer finds its checkpoint.
    """

    commit_ts: int
    place: str
    next_steps: tuple[str, ...]


def hand_over(settings: Settings, report: Report, wait_s: float = 600.0) -> HandoverResult:
    """Leave the downstream to a Drainer.

    It finishes what is under way, lets no process of this pipeline write any more, and leaves a
    checkpoint that the original accepts. Raises OperateError when that takes longer than `wait_s`,
    and what reaching the downstream raises; a folder or topic is written to as before then, if
    applying wasn't paused.
    """
    relay = settings.open_relay()
    last = relay.last()
    if last is None:
        raise OperateError(
            f"the relay log {relay.url} holds no window: this pipeline has not written anything"
        )
    before = relay.control()
    commands.pause(settings, commands.APPLY)
    report("applying is paused; waiting until nothing is under way")
    until = time.monotonic() + wait_s
    pipeline, target = PipelineIdentity.from_settings(settings), settings.target
    place = pipeline.downstream
    if isinstance(target, Downstream):
        checkpoint = _release(target, relay, last.cluster_id, report, until)
    else:
        try:
            checkpoint = _fence_out_pipeline(settings, relay, last.cluster_id, until)
        except BaseException:
            relay.change_control(lambda now: replace(now, apply_paused=before.apply_paused))
            raise
        place = f"{place}, savepoint {_savepoint(target)}"
    commands.pause(settings)
    node_id = pipeline.id
    steps = (
        "pause the DAG `replicate` in Airflow, so that no more of its runs begin",
        (
            f"start the Drainer with its drainer.toml, the same checkpoint ({place}): it goes on"
            f" after commit_ts {checkpoint.commit_ts}"
        ),
        (
            f"for good: `sluice drainers offline {node_id}`, or pumps keep what this pipeline"
            " hasn't read"
        ),
        (
            "to come back: stop the Drainer (`sluice drainers pause`), `sluice takeover`, and let"
            " the DAG run"
        ),
    )
    return HandoverResult(checkpoint.commit_ts, place, steps)


def _savepoint(target: File | Kafka) -> str:
    if isinstance(target, Kafka):
        return target.savepoint
    return target.savepoint or f"{target.dir}/savepoint"


def _handed_over_checkpoint(checkpoint: Checkpoint) -> StopMark:
    why = (
        f"the downstream was handed over to a Drainer on {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        f" at commit_ts {checkpoint.commit_ts}: `sluice takeover` takes it back"
    )
    return StopMark(why, time.time_ns() // 1_000_000)


def _release(
    downstream: Downstream, relay: RelayLog, cluster_id: int, report: Report, until: float
) -> Checkpoint:
    """Wait until the row is at rest, then remove the pipeline's name from it.

    From then on none of the pipeline's processes can commit.
    """
    asked, seen, since = 0, "", time.monotonic()
    while True:
        found = read_checkpoint(downstream, cluster_id)
        owned = relay.ownership()
        if found is None:
            raise OperateError(
                f"{downstream_name(downstream)}: there is no checkpoint of cluster {cluster_id}:"
                " nothing was applied there"
            )
        if found.owner and (owned is None or found.owner != owned.pipeline):
            raise OperateError(
                f"{downstream_name(downstream)}: the checkpoint is of pipeline {found.owner}, not"
                " of this one: hand that one over"
            )
        if not found.owner:  # a Drainer wrote it: the pipeline can't commit any more
            if owned is None or not owned.begun:
                raise OperateError(
                    f"{downstream_name(downstream)}: this pipeline has not written there: the"
                    f" checkpoint at {found.commit_ts} is a Drainer's"
                )
            relay.stop(_handed_over_checkpoint(found))
            return found
        target = max(
            found.in_flight.until if found.in_flight else 0,
            found.pending.commit_ts if found.pending else 0,
            found.shared.ts if found.shared else 0,
            found.safe_until,
        )
        if not target and found.consistent:
            rest = Checkpoint(
                found.commit_ts, found.schema_version, consistent=True, ts_map=found.ts_map
            )
            # first: a crash in between is repaired by doing it again
            relay.stop(_handed_over_checkpoint(rest))
            if replace_checkpoint(downstream, cluster_id, found, rest):
                return rest
            relay.clear_stop()
            continue
        if found.to_text() != seen:
            seen, since = found.to_text(), time.monotonic()
        if target != asked and time.monotonic() - since >= _IDLE_WAIT_S:
            asked = target
            report(
                f"what was begun reaches to {tso.text(target)}: letting the pipeline's task finish"
                " exactly that (is the DAG running?)"
            )
            relay.change_control(
                lambda now, through=target: replace(now, apply_paused=False, apply_until_ts=through)  # type: ignore[misc]
            )
        if time.monotonic() >= until:
            raise OperateError(
                f"{downstream_name(downstream)}: what was begun after {found.commit_ts} and reaches"
                f" to {target} is not finished: a Drainer can't go on from there. Let the DAG"
                " `replicate` run until `sluice status` shows a consistent checkpoint,"
                " then hand over again"
            )
        time.sleep(_POLL_INTERVAL_S)


def _fence_out_pipeline(
    settings: Settings, relay: RelayLog, cluster_id: int, until: float
) -> Checkpoint:
    """End the pipeline's processes by being the last writer; return the checkpoint.

    A folder is locked by its writer as long as that lives, paused or not; a topic's writer is shut
    out by the next one. Leaves the stop mark with this reason.
    """
    place = downstream_name(settings.target)
    earlier = relay.stopped()
    relay.stop(
        StopMark("the downstream is being handed over to a Drainer", time.time_ns() // 1_000_000)
    )
    try:
        while True:
            sink = open_sink(settings, cluster_id)
            try:
                found = sink.recover()
                if found is None:
                    raise OperateError(f"{place}: nothing was written there yet")
                relay.clear_stop()
                relay.stop(_handed_over_checkpoint(found))
                return found
            except (SluiceError, OSError) as error:
                passes = isinstance(error, CheckpointMovedError) or ours(error).transient
                if isinstance(error, OperateError) or time.monotonic() >= until or not passes:
                    raise
                time.sleep(_POLL_INTERVAL_S)
            finally:
                sink.close()
    except BaseException:
        relay.clear_stop()
        if earlier is not None:
            relay.stop(earlier)
        raise
