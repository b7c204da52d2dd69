"""Sessions of others that are at work in the downstream, by the statement that they run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sluice.etl.downstream import MySQLSession, own_session_ids

__all__ = ["OtherSession", "sessions_writing"]

_WRITE = re.compile(
    r"\s*(?:INSERT|REPLACE|UPDATE|DELETE|LOAD|ALTER|CREATE|DROP|TRUNCATE|RENAME)\b", re.IGNORECASE
)
_QUALIFIED = re.compile(
    r"\b(?:INTO|IGNORE|REPLACE|UPDATE|FROM|TABLE|EXISTS|ON)\s+(?:`((?:[^`]|``)+)`|([^\s`.,;()'\"=]+))\s*\.",
    re.IGNORECASE,
)
_TEXT = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_SESSIONS = (
    "SELECT ID, USER, HOST, DB, INFO FROM information_schema.PROCESSLIST WHERE ID <>"
    " CONNECTION_ID() AND INFO IS NOT NULL AND COMMAND NOT IN ('Daemon', 'Binlog Dump', 'Binlog"
    " Dump GTID')"
)
_MAX_SHOWN_CHARS = 120


@dataclass(frozen=True, slots=True)
class OtherSession:
    """A session that isn't this process's.

    `text` names it and its statement; `user`, `address` as the server reports them.
    """

    number: int
    user: str
    address: str
    statement: str

    @property
    def text(self) -> str:
        """Describe the session, for messages."""
        return f"session {self.number} of {self.user} from {self.address} runs: {self.statement}"


def sessions_writing(
    session: MySQLSession, is_replicated: Callable[[str], bool]
) -> Iterator[OtherSession]:
    """Yield other processes' sessions whose statement writes to a replicated database.

    `is_replicated`: asked with a database's name downstream. What a user without the right PROCESS
    can't see of other users isn't found. Raises DownstreamError.
    """
    own = own_session_ids()
    for number, user, address, database, statement in session.query(_SESSIONS):
        text = _text(statement)
        if int(number) in own or not _WRITE.match(text):
            continue
        if is_replicated(_schema_named_first(text) or _text(database)):
            yield OtherSession(
                int(number), _text(user), _text(address), " ".join(text.split())[:_MAX_SHOWN_CHARS]
            )


def _schema_named_first(statement: str) -> str:
    """Return the database that a statement names first, "" if none."""
    found = _QUALIFIED.search(_TEXT.sub("''", statement))
    if found is None:
        return ""
    return found[1].replace("``", "`") if found[1] else found[2]


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
