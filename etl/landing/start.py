"""Where landing begins when the relay log is empty and the downstream has no checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from etl.ownership import OWNER_LABEL, downstream_name
from etl.settings import Settings
from upstream import NodeStatus


class NoCheckpointError(Exception):
    """To begin now would leave out what somebody has been replicating; names who, and the ways out."""


def without_checkpoint(
    settings: Settings, cluster_id: int, drainers: Callable[[], Iterable[NodeStatus]], tso: Callable[[], int]
) -> int:
    """The commit timestamp (TSO) to begin at: the settings', or now. Raises NoCheckpointError when "now" can't be
    meant: the registry knows a drainer with a position, so the checkpoint is probably elsewhere.
    """
    initial = settings.upstream.initial_commit_ts
    if initial >= 0:
        return initial
    known = [drainer for drainer in drainers() if drainer.max_commit_ts and not _elsewhere(settings, drainer)]
    now = tso()
    if not known:
        return now
    last = max(known, key=lambda drainer: drainer.max_commit_ts)
    raise NoCheckpointError(
        f"{downstream_name(settings)}: there is no checkpoint of cluster {cluster_id}, and with [upstream]"
        " initial-commit-ts = -1 landing would begin "
        f"now; but the registry knows drainer {last.node_id} ({last.state}) through commit_ts {last.max_commit_ts}, so"
        " the changes since would be "
        "missing. Is [downstream] host, checkpoint-schema or checkpoint-table mistyped? If there is none indeed, say"
        " where to begin: "
        f"initial-commit-ts = {last.max_commit_ts} goes on from there, {now} is now. If that drainer replicates to"
        " another downstream: "
        f'[upstream] unrelated-drainers = ["{last.node_id}"]'
    )


def _elsewhere(settings: Settings, drainer: NodeStatus) -> bool:
    label = drainer.label or {}
    return drainer.node_id in settings.upstream.unrelated_drainers or (
        OWNER_LABEL in label and label.get("downstream") != downstream_name(settings)
    )
