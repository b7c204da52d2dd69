"""Who holds the checkpoint sees each commit that was confirmed before, and none is confirmed
meanwhile.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sluice.etl.changes.steps import CommitDetail, Step
from sluice.etl.downstream import Checkpoint, CheckpointMovedError
from sluice.etl.downstream.sinks import hold_checkpoint, open_sink
from sluice.etl.settings import Apply, Downstream, File, Relay, Settings, Upstream
from tests.etl.mariadb_fixture import MariaDBServer

CLUSTER = 7


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("sink", ["atomic", "parallel", "file"])
def test_a_commit_that_is_confirmed_is_there_for_who_holds_the_checkpoint_after(
    mariadb: MariaDBServer, tmp_path: Path, sink: str, first: bool
) -> None:
    settings = (
        Settings(
            Upstream("unused"),
            Relay("unused"),
            Downstream(type="file"),
            file=File(dir=str(tmp_path)),
        )
        if sink == "file"
        else Settings(Upstream("unused"), Relay("unused"), mariadb.downstream, apply=Apply(sink, 2))
    )
    found: list[Checkpoint | None] = []
    threads: list[threading.Thread] = []

    def look() -> None:
        with hold_checkpoint(settings.target, CLUSTER) as checkpoint:
            found.append(checkpoint)

    def confirm(step: Step, *, begun: bool = False) -> None:
        del begun
        if step.commit_ts == 9:
            threads.append(threading.Thread(target=look))
            threads[0].start()
            threads[0].join(0.3)
            assert not found, "it didn't wait"

    writer = open_sink(settings, CLUSTER)
    writer.recover()
    if not first:
        writer.run([Step(CommitDetail(1), 5)], confirm)
    writer.run([Step(CommitDetail(1), 9)], confirm)
    threads[0].join(60)
    writer.close()
    (checkpoint,) = found
    assert checkpoint is not None and checkpoint.commit_ts == 9


@pytest.mark.parametrize("sink", ["atomic", "parallel"])
def test_a_process_that_was_taken_over_finds_out_before_it_ends_its_successors_session(
    mariadb: MariaDBServer, sink: str
) -> None:
    settings = Settings(
        Upstream("unused"), Relay("unused"), mariadb.downstream, apply=Apply(sink, 2)
    )
    before, successor = open_sink(settings, CLUSTER), open_sink(settings, CLUSTER)
    before.recover()
    before.run([Step(CommitDetail(1), 5)])
    successor.recover()
    with pytest.raises(CheckpointMovedError):
        before.recover()
    successor.run([Step(CommitDetail(1), 9)])
    before.close()
    successor.close()
