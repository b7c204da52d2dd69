"""Make the downstream this pipeline's, from a Drainer's checkpoint or another pipeline's.

Nothing asks running tasks for anything. The checkpoint row decides which pipeline may write: a
pipeline commits nothing unless the row names it as the owner.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace

from sluice.etl.changes import server_errors
from sluice.etl.downstream import Checkpoint, CheckpointTable, DownstreamError, MySQLSession
from sluice.etl.downstream.ownership import (
    PipelineIdentity,
    describe_drainer,
    downstream_name,
    other_writers,
    sessions_writing,
    writes_elsewhere,
)
from sluice.etl.downstream.sinks import read_checkpoint
from sluice.etl.operate.commands import OperateError
from sluice.etl.operate.nodes import answers
from sluice.etl.settings import Downstream, Settings, Target
from sluice.relay import Control, Ownership, RelayLog
from sluice.tidb import (
    EtcdClient,
    EtcdError,
    NodeStatus,
    PDClient,
    PDError,
    Registry,
    RegistryError,
    tso,
)
from sluice.tidb.table_name import TableName

Report = Callable[[str], None]

_CHECKPOINT_WATCH_S = 4.0
"""A Drainer with something to do saves its checkpoint every 3 s."""


def take_over(settings: Settings, report: Report) -> str:
    """Make the downstream this pipeline's, from its checkpoint on, and let applying continue.

    Returns what was done. Raises OperateError while another process may be writing, and
    DownstreamError, CheckpointError, OSError when that can't be known.
    """
    relay = settings.open_relay()
    before = relay.control()
    identity = PipelineIdentity.from_settings(settings)
    where = identity.downstream
    cluster_id = _require_no_other_writer(identity, settings)
    found = _await_unmoved_checkpoint(settings.target, cluster_id, report)
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
            if not replace_checkpoint(
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
    """Mark tables without a key (``schema.table``) as copied at the checkpoint.

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
    if not replace_checkpoint(
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


def _await_unmoved_checkpoint(target: Target, cluster_id: int, report: Report) -> Checkpoint | None:
    """Return the checkpoint, which no process moves for a while. Raises OperateError."""
    found = read_checkpoint(target, cluster_id)
    report(
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


def replace_checkpoint(
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


def seen_writing(settings: Settings, drainers: Iterable[NodeStatus]) -> Iterator[str]:
    """Yield in words each process or session that may still write to the downstream.

    `drainers`: those of the registry. A paused Drainer can live on for minutes, and finish what it
    began. Raises DownstreamError.
    """
    pipeline, tls = PipelineIdentity.from_settings(settings), settings.upstream.tls()
    related = [
        drainer
        for drainer in drainers
        if drainer.node_id not in (pipeline.id, *settings.upstream.unrelated_drainers)
        and not writes_elsewhere(drainer, pipeline.downstream)
    ]
    for drainer in related:
        if answers(drainer, tls):
            yield (
                f"drainer {drainer.node_id} is {drainer.state} in the registry, and its process"
                f" answers at {drainer.host}"
            )
    if isinstance(settings.target, Downstream):
        with closing(MySQLSession(settings.downstream)) as session:
            session.connect()
            yield from (
                other.text for other in sessions_writing(session, settings.filters.wants_schema)
            )
