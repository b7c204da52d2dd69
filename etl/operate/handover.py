"""Change the downstream's owner: from a Drainer to this pipeline, and back.

Neither asks running tasks for anything. The checkpoint row decides which pipeline may write: a
pipeline commits nothing unless the row names it as the owner. So once the row names it no longer,
or another one, all its processes have written their last, wherever they are.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from sluice.errors import SluiceError, ours
from sluice.etl.changes import server_errors
from sluice.etl.downstream import (
    Checkpoint,
    CheckpointMovedError,
    CheckpointTable,
    DownstreamError,
    MySQLSession,
)
from sluice.etl.downstream.ownership import (
    PipelineIdentity,
    describe_drainer,
    downstream_name,
    other_writers,
)
from sluice.etl.downstream.sinks import open_sink, read_checkpoint
from sluice.etl.operate import commands
from sluice.etl.operate.commands import OperateError
from sluice.etl.operate.other_sessions import seen_writing
from sluice.etl.settings import Downstream, File, Kafka, Settings, Target
from sluice.relay import Control, Ownership, RelayLog, StopMark
from sluice.tidb import EtcdClient, EtcdError, PDClient, PDError, Registry, RegistryError, tso
from sluice.tidb.table_name import TableName

Say = Callable[[str], None]

_CHECKPOINT_WATCH_S = 4.0
"""A Drainer with something to do saves its checkpoint every 3 s."""
_POLL_INTERVAL_S = 0.5
_IDLE_WAIT_S = 5.0


def take_over(settings: Settings, say: Say) -> str:
    """Make the downstream this pipeline's, from where its checkpoint is, and let applying go on.

    Returns what was done. Raises OperateError while another process may be writing, and
    DownstreamError, CheckpointError, OSError when that can't be known.
    """
    relay = settings.open_relay()
    before = relay.control()
    identity = PipelineIdentity.from_settings(settings)
    where = identity.downstream
    cluster_id = _require_no_other_writer(identity, settings)
    found = _await_unmoved_checkpoint(settings.target, cluster_id, say)
    owned, stop = relay.ownership(), relay.stopped()
    ours = (
        owned is not None
        and owned.downstream == where
        and found is not None
        and found.owner == owned.pipeline
    )
    if ours and stop is None:
        return (
            f"nothing to do: {where} is this pipeline's, at"
            f" {tso.text(found.commit_ts) if found else ''}"
        )
    note = ""
    if settings.downstream.type == "mysql":
        # another writer was at work beside this pipeline, and hasn't moved the checkpoint yet
        if ours:
            with PDClient(settings.upstream.pd_urls, tls=settings.upstream.tls()) as pd:
                safe_until = pd.tso()
            assert found is not None
            if not _replace_checkpoint(
                settings.downstream,
                cluster_id,
                found,
                replace(found, consistent=False, safe_until=max(found.safe_until, safe_until)),
            ):
                raise OperateError(
                    f"{where}: the checkpoint has moved from {found.commit_ts} meanwhile, or is"
                    " locked: another process writes there; find and stop it, and try again"
                )
            note = (
                f"; changes through {tso.text(safe_until)} may be there already and are written so"
                " that it makes no difference"
            )
        else:
            pipeline = owned.pipeline if owned else f"{identity.id}/{secrets.token_hex(4)}"
            relay.set_ownership(Ownership(pipeline, where, found.to_text() if found else None))
            if found is not None and found.needs_safe_mode:
                note = (
                    "; it is not consistent: changes after it may be there already and are written"
                    " so that it makes no difference"
                )
    asked = relay.change_control(lambda now: _orders_since(before, now))
    relay.clear_stop()
    waits = (
        "; it waits where it was asked to meanwhile"
        if asked.apply_paused or asked.apply_until_ts is not None
        else ""
    )
    at = (
        f"from {tso.text(found.commit_ts)}"
        if found is not None
        else f"{_log_beginning(relay)}, as there is no checkpoint"
    )
    return f"{where} is this pipeline's now; applying goes on {at}{note}{waits}"


def _orders_since(before: Control, now: Control) -> Control:
    """Return only what operators asked for since `before`."""
    return Control(
        **{name: value for name, value in asdict(now).items() if value != getattr(before, name)}
    )


def mark_copied(settings: Settings, tables: Sequence[str]) -> str:
    """Let tables without a key (``schema.table``) be written from their state at the checkpoint.

    Applying then does not ask what a Drainer left in them. Raises OperateError where that isn't
    needed, or not enough.
    """
    names = [TableName.parse(text) for text in tables]
    relay = settings.open_relay()
    identity = PipelineIdentity.from_settings(settings)
    cluster_id = _require_no_other_writer(identity, settings)
    found = (
        read_checkpoint(settings.target, cluster_id)
        if isinstance(settings.target, Downstream)
        else None
    )
    owned = relay.ownership()
    if (
        found is None
        or owned is None
        or not found.needs_safe_mode
        or (found.owner != owned.pipeline and found.to_text() != owned.adopted)
    ):
        raise OperateError(
            f"{identity.downstream}: this pipeline is not going on from where a Drainer broke off:"
            " nothing asks what tables hold"
        )
    session = MySQLSession(settings.downstream)
    try:
        session.connect()
        for table in names:
            if not session.query(
                "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME"
                " = %s",
                table,
            ):
                raise OperateError(f"there is no table {table} on {session.address}")
            if session.query(
                "SELECT 1 FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME"
                " = %s AND NON_UNIQUE = 0",
                table,
            ):
                raise OperateError(
                    f"table {table} has a key: its rows are replaced by it, whatever a Drainer left"
                )
    finally:
        session.close()
    if not _replace_checkpoint(
        settings.downstream,
        cluster_id,
        found,
        replace(
            found,
            owner=owned.pipeline,
            copied=tuple(dict.fromkeys((*found.copied, *map(str, names)))),
        ),
    ):
        raise OperateError(
            f"{identity.downstream}: the checkpoint has moved meanwhile, from {found.commit_ts}:"
            " pause applying, copy as of where it is then"
        )
    return f"{', '.join(map(str, names))}: taken as copied at {tso.text(found.commit_ts)}"


def _log_beginning(relay: RelayLog) -> str:
    first = relay.first()
    return (
        f"from {tso.text(first.lo)}, where the relay log begins"
        if first
        else "where landing begins"
    )


def _require_no_other_writer(pipeline: PipelineIdentity, settings: Settings) -> int:
    """Return the cluster's id, if there is no other writer.

    Raises OperateError if one is registered there, answers, or is at work downstream.
    """
    upstream = settings.upstream
    try:
        with (
            PDClient(upstream.pd_urls, tls=upstream.tls()) as pd,
            EtcdClient(upstream.pd_urls, tls=upstream.tls()) as etcd,
        ):
            drainers = Registry(etcd).drainers()
            others = other_writers(pipeline, upstream.unrelated_drainers, drainers)
            cluster_id = pd.cluster_id
    except (PDError, EtcdError, RegistryError) as error:
        raise OperateError(
            f"whether a Drainer runs can't be asked of the registry at {upstream.pd_urls}: {error}",
            transient=error.transient,
        ) from None
    if others:
        node = others[0].node_id
        raise OperateError(
            f"{describe_drainer(others[0])}, and may write to {pipeline.downstream}: stop it first"
            " (`sluice drainers"
            f" pause {node}`); if it is gone: `sluice drainers offline {node} --gone`; if it"
            " replicates to another"
            " downstream, name it in "
            f'sluice.toml: [upstream] unrelated-drainers = ["{node}"]'
        )
    seen = next(seen_writing(settings, drainers), None)
    if seen is not None:
        raise OperateError(
            f"{pipeline.downstream}: {seen}",
            hint=(
                "wait until it has ended, or end it, then `sluice takeover`; a drainer that"
                " replicates to another downstream belongs into [upstream] unrelated-drainers"
            ),
        )
    return cluster_id


def _await_unmoved_checkpoint(target: Target, cluster_id: int, say: Say) -> Checkpoint | None:
    """Return the checkpoint, which no process moves for a while. Raises OperateError."""
    found = read_checkpoint(target, cluster_id)
    say(
        f"the checkpoint is {f'at {tso.text(found.commit_ts)}' if found else 'not there'}; watching"
        f" it {_CHECKPOINT_WATCH_S:g} s for another writer"
    )
    time.sleep(_CHECKPOINT_WATCH_S)
    later = read_checkpoint(target, cluster_id)
    if (found.to_text() if found else None) != (later.to_text() if later else None):
        raise OperateError(
            f"{downstream_name(target)}: the checkpoint has moved to"
            f" {later.commit_ts if later else 'nothing'} meanwhile: another process writes there,"
            " though no Drainer that counts is online in the registry. Find and stop it first: a"
            " Drainer of [upstream] unrelated-drainers, or another pipeline"
        )
    return later


# Back to a Drainer


@dataclass(frozen=True, slots=True)
class HandoverResult:
    """`commit_ts`: through where the downstream is complete.

    `place`: where the Drainer finds its checkpoint.
    """

    commit_ts: int
    place: str
    next_steps: tuple[str, ...]


def hand_over(settings: Settings, say: Say, wait_s: float = 600.0) -> HandoverResult:
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
    say("applying is paused; waiting until nothing is under way")
    until = time.monotonic() + wait_s
    pipeline, target = PipelineIdentity.from_settings(settings), settings.target
    place = pipeline.downstream
    if isinstance(target, Downstream):
        checkpoint = _release(target, relay, last.cluster_id, say, until)
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
    downstream: Downstream, relay: RelayLog, cluster_id: int, say: Say, until: float
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
            found.flight.until if found.flight else 0,
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
            if _replace_checkpoint(downstream, cluster_id, found, rest):
                return rest
            relay.clear_stop()
            continue
        if found.to_text() != seen:
            seen, since = found.to_text(), time.monotonic()
        if target != asked and time.monotonic() - since >= _IDLE_WAIT_S:
            asked = target
            say(
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


def _replace_checkpoint(
    downstream: Downstream, cluster_id: int, found: Checkpoint, wanted: Checkpoint
) -> bool:
    """Write the row if it is still as it was found; whether it was."""
    session = MySQLSession(downstream)
    try:
        session.connect()
        table = CheckpointTable.from_settings(session, downstream, cluster_id)
        session.begin()
        there = table.load(wait=True)
        if there is None or there.to_text() != found.to_text():
            return False
        table.save(wanted)
        session.commit()
        return True
    except DownstreamError as error:
        if error.code == server_errors.LOCK_WAIT_TIMEOUT:
            return False
        raise
    finally:
        session.close()


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
