"""Warn, while applying runs, of other sessions that write to replicated databases.

Two writers make rows differ, and neither notices. A Drainer that was replaced can live on for
minutes without a heartbeat; a script or a person can write, too. A statement by hand may be
intended, so it is a warning, and applying continues.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sluice.errors import SluiceError
from sluice.etl.changes.rules import RouteError, Routes
from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.ownership import OtherSession, sessions_writing
from sluice.etl.settings import Downstream
from sluice.relay.measures import CounterStore
from sluice.tidb.folded import folded
from sluice.tidb.table_name import TableName, names_table

__all__ = ["OtherSessionWatcher"]

log = logging.getLogger("sluice.apply")

_CHECK_INTERVAL_S = 10.0
"""Each check is one statement (0.3 ms for the server); a lasting writer is seen in a few checks."""
_CLOSE_TIMEOUT_S = 3.0
_MAX_KNOWN_SESSIONS = 10_000


class OtherSessionWatcher:
    """Check from a thread and a session of its own, until closed. Errors never stop applying."""

    def __init__(
        self,
        downstream: Downstream,
        routes: Routes,
        measures: CounterStore,
        on_found: Callable[[], None],
    ) -> None:
        """Start the thread.

        `measures` has the applied tables; `on_found` is called once a session.
        """
        self._session = MySQLSession(downstream)
        self._routes = routes
        self._measures = measures
        self._on_found = on_found
        self._known: set[tuple[int, str]] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="other-sessions", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop checking."""
        self._stopped.set()
        self._session.close()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopped.wait(_CHECK_INTERVAL_S):
            try:
                self._check()
            except (SluiceError, OSError) as error:  # applying reports what is wrong downstream
                log.debug("other sessions could not be checked: %s", error)
                self._session.close()
        self._session.close()

    def _check(self) -> None:
        if not self._session.is_connected:
            self._session.connect()
        for other in sessions_writing(self._session, self._is_replicated):
            self._warn(other)
        self._session.commit()

    def _warn(self, other: OtherSession) -> None:
        if (other.number, other.user) in self._known:
            return
        if len(self._known) >= _MAX_KNOWN_SESSIONS:
            self._known.clear()
        self._known.add((other.number, other.user))
        self._on_found()
        log.warning(
            "another writer is at work downstream, which makes rows differ: %s; unless it is"
            " intended, end it, then run `sluice verify` to see what it changed",
            other.text,
        )

    def _is_replicated(self, database: str) -> bool:
        """Return whether this pipeline has written rows into `database`; not only a restore."""
        return folded(database) in {
            folded(self._goal(name)) for name in self._measures.tables() if names_table(name)
        }

    def _goal(self, name: str) -> str:
        schema, table = TableName.parse(name)
        try:
            return self._routes.target(schema, table).schema
        except RouteError:
            return ""
