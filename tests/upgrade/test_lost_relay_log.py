"""A relay log lost with its disk: what the downstream lacks is landed again, and applied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sluice.etl.apply import BatchReport, run_apply
from sluice.etl.apply.run import OtherWriterError
from sluice.etl.operate import takeover
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from tests.etl.apply.test_apply_random import fresh, rows_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.random_history import TABLES, History


class _Lost(Exception):
    """The disk is gone in the middle of a batch."""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_a_lost_relay_log_is_landed_again_from_the_checkpoint_on(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    history = History(152)
    history.grow(60)
    folder = tmp_path / "relay"
    before = history.land(f"file://{folder}", [10])
    fresh(mariadb).close()
    settings = Settings(
        Upstream("unused"), Relay(before.url), mariadb.downstream, apply=Apply(mode, 2, 1)
    )
    seen: list[BatchReport] = []
    last = before.last()
    assert last is not None

    def lose(report: BatchReport) -> None:
        seen.append(report)
        if len(seen) == 3:
            shutil.rmtree(folder)
            raise _Lost

    with pytest.raises(_Lost):
        run_apply(
            settings,
            until_ts=last.hi,
            run_seconds=240,
            prepare=local_preparer(settings),
            on_batch=lose,
        )
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT JSON_VALUE(checkPoint, '$.commitTS') FROM tidb_binlog.checkpoint")
        checkpoint = int(cursor.fetchall()[0][0])
    assert before.first() is None

    # as landing does: it begins at the checkpoint
    again = history.land(f"file://{folder}", [7], after=checkpoint)
    first = again.first()
    assert first is not None and first.lo == checkpoint
    with pytest.raises(OtherWriterError, match="sluice takeover"):
        run_apply(settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings))
    # Nobody else writes: the registry, which isn't there, would say so.
    monkeypatch.setattr(takeover, "_require_no_other_writer", lambda *_: 7)
    monkeypatch.setattr(takeover, "_CHECKPOINT_WATCH_S", 0.0)
    assert "is this pipeline's now; applying goes on from" in takeover.take_over(
        settings, lambda _: None
    )
    run_apply(settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings))
    with mariadb.connect() as connection:
        for name in TABLES:
            assert rows_of(connection, name) == history.expected(name), name
