"""Binlog files hold what is on the disk: what a failed or interrupted write left in the page cache
is no record, and orders still count.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.changes.steps import CommitDetail, Step
from sluice.etl.downstream.sinks import read_checkpoint
from sluice.etl.downstream.sinks.file import FileSink
from sluice.etl.operate import OperateError, skip_transaction
from sluice.etl.settings import Apply, Downstream, File, Relay, Settings, Upstream
from tests.etl.downstream.sinks.test_file_sink import CLUSTER, message, story, written
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, table

ITEM = table(11, "item", "id int", "v int", primary="id")


class Disk:
    """Fails one fdatasync as a disk does: what was written is lost there, though it can be read
    from the page cache.
    """

    def __init__(self, fails: int) -> None:
        self.fails = fails
        self.durable: dict[int, int] = {}
        self._sync, self._write = os.fdatasync, os.write
        self._dirty: dict[int, list[tuple[int, int]]] = {}
        self.lost: set[tuple[int, int]] = set()

    def write(self, descriptor: int, data: Any) -> int:
        at = os.fstat(descriptor).st_size
        count = self._write(descriptor, data)
        file = os.fstat(descriptor).st_ino
        self._dirty.setdefault(file, []).append((at, at + count))
        self.lost -= {(file, byte) for byte in range(at, at + count)}
        return count

    def sync(self, descriptor: int) -> None:
        self.fails -= 1
        file = os.fstat(descriptor).st_ino
        pieces = self._dirty.pop(file, [])
        if self.fails == 0:
            self.lost |= {(file, byte) for start, end in pieces for byte in range(start, end)}
            raise OSError(errno.EIO, "Input/output error")
        self._sync(descriptor)


@pytest.mark.parametrize("restart", [False, True], ids=["same process", "another process"])
@pytest.mark.parametrize("fails", [1, 2, 3])
@pytest.mark.parametrize("limit", [100, 10**6])
def test_what_a_failed_sync_lost_is_written_again(
    tmp_path: Path, restart: bool, fails: int, limit: int
) -> None:
    options = File(dir=str(tmp_path), max_file_bytes=limit)
    sizes = [30, 40, 50, 20, 60]
    disk = Disk(fails)
    sink = FileSink(options, CLUSTER)
    with (
        mock.patch("sluice.etl.downstream.sinks.file.os.fdatasync", disk.sync),
        mock.patch("sluice.etl.downstream.sinks.file.os.write", disk.write),
    ):
        sink.recover()
        with pytest.raises(OSError, match="Input/output"):
            sink.run(story(0, sizes, 2))
        if restart:
            sink.close()
            sink = FileSink(options, CLUSTER)
        checkpoint = sink.recover()
        sink.run(story(checkpoint.commit_ts if checkpoint else 0, sizes, 2))
    sink.close()
    assert written(tmp_path) == [message(i + 1, size) for i, size in enumerate(sizes)]
    here = {path.stat().st_ino: path.stat().st_size for path in tmp_path.glob("binlog-*")}
    assert [(file, byte) for file, byte in disk.lost if byte < here.get(file, 0)] == []


def test_an_empty_folder_is_remembered_as_one(tmp_path: Path) -> None:
    """Or records of a first batch that was broken off would pass for a Drainer's."""
    sink = FileSink(File(dir=str(tmp_path)), CLUSTER)
    assert sink.recover() is None
    steps = list(story(0, [30], 1))
    sink.run(step for step in steps if step.kind != "commit")
    sink.close()
    assert sink.recover() is None
    assert written(tmp_path) == []
    sink.run(steps)
    sink.run([Step(CommitDetail(1), 9)])
    sink.close()
    assert written(tmp_path) == [message(1, 30)]


def test_a_transaction_skipped_while_being_written_is_left_out_and_a_written_one_is_refused(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    told = Story(mariadb, tmp_path)
    told.create(ITEM, "CREATE TABLE `item` (`id` int primary key, `v` int)")
    told.insert(ITEM, {"id": 1, "v": 1})
    there = told._ts
    told.insert(ITEM, {"id": 2, "v": 2})
    skipped = told._ts
    told.insert(ITEM, {"id": 3, "v": 3})
    folder = tmp_path / "files"
    settings = Settings(
        Upstream("unused"),
        Relay(told._url),
        Downstream(type="file"),
        apply=Apply(max_rows=1000),
        file=File(dir=str(folder)),
    )
    prepare = local_preparer(settings)
    calls = []

    def meanwhile(windows: Any) -> Any:
        batches = list(prepare(windows))
        if not calls:
            skip_transaction(settings, skipped)
        calls.append(len(batches))
        yield from batches

    run_apply(settings, until_ts=told._ts, run_seconds=240, prepare=meanwhile)
    assert len(calls) == 2
    assert len(written(folder)) == 4  # two DDL statements, two transactions
    assert skipped in told._relay.overrides.used_ms()
    with pytest.raises(OperateError, match="already"):
        skip_transaction(settings, there)
    found = read_checkpoint(settings.target, 7)
    assert found is not None and found.commit_ts == told._ts
