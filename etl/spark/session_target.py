"""Where a job runs, and what it works on."""

from __future__ import annotations

from typing import NamedTuple

from sluice.etl.settings import Spark


class SessionTarget(NamedTuple):
    """A session on a Spark Connect server."""

    server: Spark
    role: str
    """Whose session it is: "land", "apply". Two processes of one role would end each other's jobs.
    """
    url: str
    """Of the relay log, or the archive, that it works on: another one has another session."""
    also: tuple[str, ...] = ()
    """Other URLs at which its workers read or write."""
