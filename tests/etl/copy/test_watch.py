"""A copy whose end would be of no use stops, and says what was lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.etl.copy.bootstrap import BootstrapPlanner
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.preconditions import PreconditionMonitor, check_binlogs_retained
from sluice.etl.copy.worker import make_loads
from sluice.etl.landing.planner import WindowPlanner
from sluice.etl.settings import Window
from tests.etl.copy import small_story
from tests.etl.copy.copying import settings_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.window_pumps import CLUSTER_ID, WindowPump


@pytest.fixture
def pump() -> Iterator[WindowPump]:
    made = WindowPump("a")
    yield made
    made.stop()


@pytest.fixture
def planner(pump: WindowPump) -> Iterator[WindowPlanner]:
    made = WindowPlanner(CLUSTER_ID, Window(), lambda: small_story.TS + 100, lambda: [pump.status])
    yield made
    made.close()


@pytest.mark.parametrize("chunks_before", [0, 2, 4])
def test_pumps_that_purge_while_rows_are_copied_stop_it_by_name_before_the_checkpoint(
    mariadb: MariaDBServer,
    tmp_path: Path,
    pump: WindowPump,
    planner: WindowPlanner,
    chunks_before: int,
) -> None:
    source = small_story.open_source(small_story.write_dump(tmp_path / "dump"))
    made = BootstrapPlanner(settings_of(mariadb, tmp_path), source, small_story.definitions(), 7)
    made.watch = PreconditionMonitor(
        lambda: check_binlogs_retained(planner, small_story.TS), every_s=0
    )
    seen: list[int] = []

    def purge(_: object) -> None:
        seen.append(1)
        if len(seen) == 2 + chunks_before:
            pump.purged_through = small_story.TS + 5

    with pytest.raises(
        CopyError,
        match=rf"the pumps have no longer what was committed since .* {small_story.TS}.*pump a",
    ):
        made.run(lambda chunk, table: make_loads(source.spec(), chunk, table), on_progress=purge)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM tidb_binlog.checkpoint")
        assert cursor.fetchone() == (0,)


def test_a_pump_that_does_not_answer_is_told_from_one_that_has_purged(
    pump: WindowPump, planner: WindowPlanner
) -> None:
    check_binlogs_retained(planner, small_story.TS)
    pump.stop()
    with pytest.raises(CopyError, match="can't be known") as caught:
        check_binlogs_retained(planner, small_story.TS)
    assert caught.value.transient


def test_a_pump_that_is_behind_the_position_has_not_purged(
    pump: WindowPump, planner: WindowPlanner
) -> None:
    """An orphaned Prewrite holds its mark back until TiKV can be asked about it."""
    pump.stuck_at = small_story.TS - 1000
    check_binlogs_retained(planner, small_story.TS)
    assert planner.plan(small_story.TS) is None and planner.limiting_pump.startswith("a (")
    pump.purged_through = small_story.TS + 5
    with pytest.raises(CopyError, match="have no longer"):
        check_binlogs_retained(planner, small_story.TS)


def test_it_is_looked_no_more_often_than_asked_for() -> None:
    looked: list[int] = []
    watch = PreconditionMonitor(lambda: looked.append(1), every_s=3600)
    watch.now_and_then()
    assert not looked
    watch.now()
    watch.now_and_then()
    assert len(looked) == 1
