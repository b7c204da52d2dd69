"""Check the mark table of a downstream that is replicated on: its existence, and its channels."""

from __future__ import annotations

from collections.abc import Iterator

from sluice.errors import WARN, CheckResult
from sluice.etl.changes.mark_table import (
    CHANNEL_COLUMN,
    CREATE_MARK_TABLE,
    FIND_MARK_TABLE,
    MARK_NAME,
)
from sluice.etl.downstream import MySQLSession
from sluice.etl.settings import Downstream

_FIND_CHANNELS = f"SELECT DISTINCT {CHANNEL_COLUMN} FROM {MARK_NAME} ORDER BY 1"


def check_marks(session: MySQLSession, target: Downstream) -> Iterator[CheckResult]:
    """Yield what would stop this pipeline, or the next one of a ring. Raises DownstreamError."""
    channels = target.channels
    if channels is None:
        return
    if session.query(FIND_MARK_TABLE) == [(0,)]:
        yield CheckResult(
            "downstream",
            WARN,
            f"{MARK_NAME} of [downstream] loopback-control isn't there: applying makes it when"
            " it starts, if its user may",
            f"else, as a user with the right to: {'; '.join(CREATE_MARK_TABLE)}",
        )
    elif channels.is_ring:
        expected = {channels.own, *channels.passed_on}
        found = [int(channel) for (channel,) in session.query(_FIND_CHANNELS)]
        foreign = ", ".join(str(each) for each in found if each not in expected)
        if foreign:
            yield CheckResult(
                "downstream",
                WARN,
                f"{MARK_NAME} on {session.address} has marks of channels {foreign}, and by"
                f" [downstream] ring those of {', '.join(map(str, sorted(expected)))} alone come"
                " there: the next pipeline stops at rows with others",
                "compare ring and channel-id of what writes there. Marks of a former pair may go:"
                f" DELETE FROM {MARK_NAME} WHERE {CHANNEL_COLUMN} IN ({foreign})",
            )
