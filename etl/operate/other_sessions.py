"""Find a downstream's other writers before a takeover: live processes and busy sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.ownership import PipelineIdentity, sessions_writing, writes_elsewhere
from sluice.etl.operate.nodes import answers
from sluice.etl.settings import Downstream, Settings
from sluice.tidb import NodeStatus


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
