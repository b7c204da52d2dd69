"""A folder of binlog files changes hands while a process of the pipeline holds it, or applying is
left as it was.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from sluice.etl import operate
from sluice.etl.apply import run_apply
from sluice.etl.downstream import CheckpointMovedError
from sluice.etl.downstream.ownership import OtherWriterError
from sluice.etl.operate.handover import hand_over
from sluice.etl.settings import Downstream, File, Relay, Settings, Upstream
from sluice.relay import Control
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, with_item


@pytest.fixture
def told(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    return with_item(mariadb, tmp_path)


@pytest.fixture
def settings(told: Story, tmp_path: Path) -> Settings:
    folder = File(dir=str(tmp_path / "files"))
    return Settings(Upstream("unused"), Relay(told.url), Downstream(type="file"), file=folder)


def test_the_process_that_holds_the_folder_ends_and_the_folder_is_handed_over(
    told: Story, settings: Settings
) -> None:
    there, ended = threading.Event(), []

    def apply() -> None:
        try:
            run_apply(
                settings,
                run_seconds=240,
                prepare=local_preparer(settings),
                on_batch=lambda _: there.set(),
            )
        except OtherWriterError as error:
            ended.append(str(error))

    thread = threading.Thread(target=apply)
    thread.start()
    assert there.wait(60)
    done = hand_over(settings, lambda _: None, wait_s=60)
    thread.join(60)
    assert len(ended) == 1 and "hand" in ended[0]
    assert done.commit_ts == told._ts
    stop = told._relay.stopped()
    assert stop is not None and str(told._ts) in stop.why


@pytest.mark.parametrize("paused", [False, True])
def test_where_it_comes_to_nothing_applying_is_as_before(
    told: Story, settings: Settings, tmp_path: Path, *, paused: bool
) -> None:
    run_apply(settings, until_ts=told._ts, run_seconds=60, prepare=local_preparer(settings))
    if paused:
        operate.pause(settings, operate.APPLY)
    holder = os.open(tmp_path / "files" / ".lock", os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    began = time.monotonic()
    with pytest.raises(CheckpointMovedError, match="another process writes"):
        hand_over(settings, lambda _: None, wait_s=0.7)
    assert time.monotonic() - began >= 0.7
    assert told._relay.control() == Control(apply_paused=paused)
    assert told._relay.stopped() is None
    os.close(holder)
    assert hand_over(settings, lambda _: None, wait_s=60).commit_ts == told._ts
