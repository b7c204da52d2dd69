"""The session of a job, and the relay log or archive that it works on."""

from __future__ import annotations

from typing import NamedTuple

from sluice.etl.settings import Spark


class SessionTarget(NamedTuple):
    """A session on a Spark Connect server."""

    server: Spark
    role: str
    """The role of the session: "land", "apply".

    Two processes of a role would end each other's jobs.
    """
    url: str
    """URL of the relay log, or the archive, that it works on: another one has another session."""
    also: tuple[str, ...] = ()
    """Other URLs at which its workers read or write."""
