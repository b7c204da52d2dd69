"""Transactions of a real cluster, taken back one by one, the last one first: the tables are what
they were before.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.changes.formats.sql_text import quote_table
from sluice.etl.settings import Relay, Settings, Upstream
from sluice.relay import RelayLog, WindowRecord
from tests.etl.history.undo.undoing import State, read, state, take_back, would_conflict
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import RECORDINGS, land

_STOPS = 6
"""So many states on the way are compared; that each of them is was tried once, and takes 40 s."""


@pytest.mark.slow
def test_every_type_and_key_shape_is_taken_back(mariadb: MariaDBServer, tmp_path: Path) -> None:
    relay = land(RECORDINGS / "types", f"file://{tmp_path}/relay", 1)
    settings = Settings(Upstream("unused"), Relay(relay.url), mariadb.downstream)
    changing = [window for window in relay.windows(0) if window.changes and not window.ddls]
    assert len(changing) > 100
    stops = states_at(mariadb, settings, relay, changing[:: len(changing) // _STOPS])
    for window in reversed(changing):
        if window.hi in stops:
            assert would_conflict(settings, window.hi).conflicts == []
        undone, expected = take_back(mariadb, settings, window.hi)
        assert undone == expected
        if window.hi in stops:
            assert state(mariadb, stops[window.hi]) == stops[window.hi], window.hi


def states_at(
    server: MariaDBServer, settings: Settings, relay: RelayLog, windows: list[WindowRecord]
) -> dict[int, State]:
    """Apply all.

    What the tables that a window touches, and those that were touched before, were when it began.
    """
    found: dict[int, State] = {}
    tables: set[str] = set()
    last = relay.last()
    assert last is not None
    for window in windows:
        run_apply(settings, until_ts=window.lo, run_seconds=240, prepare=local_preparer(settings))
        tables |= {quote_table(table.named) for table in read(settings, window.hi)[1]}
        found[window.hi] = state(server, sorted(tables))
    run_apply(settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings))
    return found
