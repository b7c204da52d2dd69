"""Other writers of a downstream: processes that still answer, sessions that are at work in the server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from etl.downstream import MySQLSession
from etl.operate.nodes import answers
from etl.ownership import Pipeline, writes_elsewhere
from etl.settings import Downstream, Settings
from upstream import NodeStatus

_WRITE = re.compile(r"\s*(?:INSERT|REPLACE|UPDATE|DELETE|LOAD|ALTER|CREATE|DROP|TRUNCATE|RENAME)\b", re.IGNORECASE)
_SESSIONS = (
    "SELECT ID, USER, HOST, DB, INFO FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID() AND COMMAND NOT IN"
    " ('Daemon', 'Binlog Dump', 'Binlog Dump GTID')"
)
_SHOWN = 120


def seen_writing(settings: Settings, drainers: Iterable[NodeStatus]) -> Iterator[str]:
    """Yield in words each process or session that may still write to the downstream.

    `drainers`: those of the registry. A paused Drainer can live on for minutes, and finish what it had begun. Raises
    DownstreamError.
    """
    pipeline, tls = Pipeline.of(settings), settings.upstream.tls()
    related = [
        drainer
        for drainer in drainers
        if drainer.node_id not in (pipeline.id, *settings.upstream.unrelated_drainers)
        and not writes_elsewhere(drainer, pipeline.downstream)
    ]
    for drainer in related:
        if answers(drainer, tls):
            yield (
                f"drainer {drainer.node_id} is {drainer.state} in the registry, and its process answers at"
                f" {drainer.host}"
            )
    if isinstance(settings.target, Downstream):
        yield from _sessions(settings)


def _sessions(settings: Settings) -> Iterator[str]:
    """Yield the sessions of others that run a statement that writes to a replicated database."""
    session = MySQLSession(settings.downstream)
    try:
        session.connect()
        rows = session.query(_SESSIONS)
    finally:
        session.close()
    for number, user, host, database, statement in rows:
        text = _text(statement)
        if _WRITE.match(text) and settings.filters.wants_schema(_text(database) or _named(text)):
            yield f"session {number} of {_text(user)} from {_text(host)} runs: {' '.join(text.split())[:_SHOWN]}"


def _named(statement: str) -> str:
    """Return the first database that a statement names, "" if none."""
    found = re.search(r"[`\s]([\w$-]+)`?\.`?[\w$-]", statement)
    return found[1] if found else ""


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
