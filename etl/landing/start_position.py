"""Find where landing begins: the relay log's end, the downstream's checkpoint, or the settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sluice.errors import SluiceError
from sluice.etl.downstream import Checkpoint
from sluice.etl.downstream.ownership import downstream_name, writes_elsewhere
from sluice.etl.downstream.sinks import read_checkpoint
from sluice.etl.landing._cluster import UpstreamCluster
from sluice.etl.landing.upstream_schema import version_at
from sluice.etl.retry import one_line
from sluice.etl.settings import Target, Upstream
from sluice.relay import RelayLog
from sluice.tidb import NodeStatus, TiKVError, tso

log = logging.getLogger("sluice.land")

_CLEAN_UP_SPAN = tso.span(600_000)


class NoCheckpointError(SluiceError):
    """Landing from now would pass over what another drainer replicates; names the drainer."""

    hint = "set where to begin: a checkpoint row downstream, or initial-commit-ts"


class WrongClusterError(SluiceError):
    """The relay log holds another cluster's windows."""

    hint = "give each cluster a relay log of its own, or correct pd-urls"


class BinlogsEndedError(SluiceError):
    """Settings ask for binlogs where captured changes were landed."""

    hint = (
        'set [upstream] source = "auto". The way back to binlogs is an empty relay log and a new'
        " copy: `sluice bootstrap`"
    )


@dataclass(frozen=True, slots=True)
class StartPosition:
    """The position at which landing begins."""

    ts: int
    """Everything through this TSO is landed, or not replicated."""
    is_resumed: bool
    """The relay log has windows, which end at `ts`."""
    schema_version: int | None = None
    """The schema version as of `ts`, if known from elsewhere than TiKV."""


def resume_from_log(relay: RelayLog, cluster: UpstreamCluster) -> StartPosition | None:
    """Return where the relay log ends; None if it is empty.

    Remove parts behind the end that no window names.

    Raises WrongClusterError, BinlogsEndedError, PDError and relay errors.
    """
    if cluster.source == "binlog" and relay.known_pumps.load().is_captured:
        raise BinlogsEndedError(
            f'[upstream] source is "binlog", and the relay log {relay.url} has captured changes:'
            " TiDB may have stopped to write binlogs since"
        )
    last = relay.last()
    if last is None and relay.begun() is not None:
        last = relay.last()
    if last is None:
        return None
    if last.cluster_id != cluster.id:
        raise WrongClusterError(
            f"the relay log {relay.url} is of cluster {last.cluster_id}, PD at {cluster.pd_urls} is"
            f" of cluster {cluster.id}",
            hint="give each cluster a relay log of its own",
        )
    removed = relay.clean_unreferenced(since_ts=max(0, last.lo - _CLEAN_UP_SPAN))
    if removed:
        log.info("removed %d parts that belong to no window", removed)
    return StartPosition(last.hi, is_resumed=True)


def has_landed(relay: RelayLog, job_id: int, since_ts: int) -> bool:
    """Return whether a window behind a TSO names a DDL job."""
    first = relay.first()
    if first is None:
        return False
    windows = relay.windows(max(since_ts, first.lo))
    return any(int(ddl["job_id"]) == job_id for window in windows for ddl in window.ddls)


def initial_position(target: Target, upstream: Upstream, cluster: UpstreamCluster) -> StartPosition:
    """Return where an empty relay log begins.

    A downstream that can't be reached is an error here: a relay log must not begin after what the
    downstream still needs. Raises NoCheckpointError, CheckpointError, DownstreamError, PDError and
    TiKVError.
    """
    checkpoint = read_checkpoint(target, cluster.id)
    if checkpoint is not None:
        return StartPosition(
            checkpoint.commit_ts, is_resumed=False, schema_version=_version_of(checkpoint, cluster)
        )
    place = downstream_name(target)
    ts = position_without_checkpoint(
        place, upstream, cluster.id, cluster.registry.drainers, cluster.pd.tso
    )
    return StartPosition(ts, is_resumed=False)


def _version_of(checkpoint: Checkpoint, cluster: UpstreamCluster) -> int:
    """Return the schema version of a checkpoint, by TiKV or else by the row.

    A Drainer's row may name an older version than that of its commit_ts. But TiKV may have no
    snapshot of that TSO.
    """
    try:
        return version_at(cluster.tikv, checkpoint.commit_ts) or checkpoint.schema_version
    except TiKVError as error:
        if not checkpoint.schema_version:
            raise
        log.warning(
            "cannot read the schema version at commit_ts %d from TiKV, using the checkpoint's,"
            " %d: %s",
            checkpoint.commit_ts,
            checkpoint.schema_version,
            one_line(error),
        )
        return checkpoint.schema_version


def position_without_checkpoint(
    place: str,
    upstream: Upstream,
    cluster_id: int,
    drainers: Callable[[], Iterable[NodeStatus]],
    tso: Callable[[], int],
) -> int:
    """Return the TSO to begin at if `place` has no checkpoint: the settings', or now.

    `place`: a `downstream_name`. Raises NoCheckpointError when "now" can't be meant: the registry
    has a drainer with a position, so the checkpoint is probably elsewhere.
    """
    initial = upstream.initial_commit_ts
    if initial >= 0:
        return initial
    known = [
        drainer
        for drainer in drainers()
        if drainer.max_commit_ts
        and drainer.node_id not in upstream.unrelated_drainers
        and not writes_elsewhere(drainer, place)
    ]
    now = tso()
    if not known:
        return now
    last = max(known, key=lambda drainer: drainer.max_commit_ts)
    raise NoCheckpointError(
        f"{place}: there is no checkpoint of cluster {cluster_id}, and with [upstream]"
        " initial-commit-ts = -1 landing would begin "
        f"now; but the registry knows drainer {last.node_id} ({last.state}) through commit_ts"
        f" {last.max_commit_ts}, so"
        " the changes since would be "
        "missing. Is [downstream] host, checkpoint-schema or checkpoint-table mistyped? If there is"
        " none indeed, set"
        " where to begin: "
        f"initial-commit-ts = {last.max_commit_ts} goes on from there, {now} is now. If that"
        " drainer replicates to"
        " another downstream: "
        f'[upstream] unrelated-drainers = ["{last.node_id}"]'
    )
