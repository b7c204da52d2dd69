"""Binlog files: the original Drainer's bytes, every transaction exactly once, whatever stops the
process that writes them.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.etl.apply import run_apply
from sluice.etl.changes.formats.binlog_file import (
    BinlogFileName,
    commit_ts_of,
    encode_record,
    list_files,
    new_name,
    read_file,
)
from sluice.etl.changes.steps import CommitDetail, ScopedDdl, Step
from sluice.etl.downstream import CheckpointError, CheckpointMovedError, SavepointFile
from sluice.etl.downstream.sinks import ApplyError, open_sink, read_checkpoint
from sluice.etl.downstream.sinks.file import FileSink
from sluice.etl.settings import Apply, Downstream, File, Relay, Settings, Upstream
from sluice.relay import RelayLog
from tests.etl.killed_writer import ON_BATCH, ends_by_itself
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.examples import examples

CLUSTER = 7
DRAINER_FILE = RECORDINGS / "shop" / "drainer-file" / "binlog-0000000000000000-20261121092320.gz"


@pytest.fixture(scope="module")
def original() -> list[bytes]:
    """What the original Drainer wrote for the recording."""
    return [message for _, message in read_file(DRAINER_FILE)]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> RelayLog:
    return land(
        RECORDINGS / "shop", f"file://{tmp_path_factory.mktemp('shop')}", 500, cluster_id=CLUSTER
    )


def configured(relay: RelayLog, file: File, max_rows: int = 20_000) -> Settings:
    return Settings(
        Upstream("unused"),
        Relay(relay.url),
        Downstream(type="file"),
        apply=Apply(max_rows=max_rows),
        file=file,
    )


def apply(relay: RelayLog, file: File, max_rows: int = 20_000, until_ts: int | None = None) -> int:
    wanted = configured(relay, file, max_rows)
    last = relay.last()
    assert last is not None
    return run_apply(
        wanted, until_ts=until_ts or last.hi, run_seconds=120, prepare=local_preparer(wanted)
    ).checkpoint


def written(folder: Path) -> list[bytes]:
    return [message for path in list_files(folder) for _, message in read_file(path)]


def numbers(folder: Path) -> list[int]:
    return [name.index for path in list_files(folder) if (name := BinlogFileName.parse(path.name))]


def test_the_files_have_the_original_drainers_bytes(
    shop: RelayLog, tmp_path: Path, original: list[bytes]
) -> None:
    apply(shop, File(dir=str(tmp_path)))
    (path,) = list_files(tmp_path)
    assert BinlogFileName.parse(path.name) == BinlogFileName(0)
    assert path.read_bytes() == b"".join(encode_record(message) for message in original)
    last = shop.last()
    assert last is not None
    checkpoint = read_checkpoint(File(dir=str(tmp_path)), CLUSTER)
    assert checkpoint is not None
    assert (checkpoint.commit_ts, checkpoint.schema_version) == (last.hi, last.schema_version)


def test_files_end_with_the_record_that_reaches_the_limit(
    shop: RelayLog, tmp_path: Path, original: list[bytes]
) -> None:
    limit = 300_000
    apply(shop, File(dir=str(tmp_path), max_file_bytes=limit))
    assert written(tmp_path) == original
    paths = list_files(tmp_path)
    assert numbers(tmp_path) == list(range(len(paths)))
    for path in paths[:-1]:
        *_, (before, _), (end, _) = [(0, b""), *read_file(path)]
        assert end == path.stat().st_size >= limit > before


def test_finished_files_are_compressed_and_old_ones_removed(
    shop: RelayLog, tmp_path: Path, original: list[bytes]
) -> None:
    options = File(
        dir=str(tmp_path), max_file_bytes=1_000_000, compression="gzip", retention_days=2
    )
    half = commit_ts_of(original[len(original) // 2])
    apply(shop, options, until_ts=half)
    apply(shop, options)
    sink = open_sink(configured(shop, options), CLUSTER)
    sink.recover()
    deadline = time.monotonic() + 60
    while (
        any(not path.name.endswith(".gz") for path in list_files(tmp_path)[:-1])
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    paths = list_files(tmp_path)
    assert len(paths) > 8
    assert [path.name.endswith(".gz") for path in paths] == [True] * (len(paths) - 1) + [False]
    assert written(tmp_path) == original
    assert not list(tmp_path.glob("*.tmp"))
    sink.close()
    for path in [*paths[:3], paths[4], paths[-1]]:
        os.utime(path, (time.time() - 3 * 86400,) * 2)
    sink.recover()
    while len(list_files(tmp_path)) > len(paths) - 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    sink.close()
    assert list_files(tmp_path) == paths[3:]


class _Crash(BaseException):
    """Stands for the process's sudden end."""


class _Crashing:
    """Lets the operating system's calls through until one of them is the last, which may write a
    part of its data only. `synced` is told how many bytes of each file are durable.
    """

    def __init__(self, calls: int, share: float, synced: dict[str, int]) -> None:
        self.left, self.share, self.synced = calls, share, synced
        self.write, self.sync, self.replace = os.write, os.fdatasync, Path.replace

    def _count(self) -> bool:
        self.left -= 1
        return self.left < 0

    def do_write(self, descriptor: int, data: memoryview) -> int:
        if self._count():
            self.write(descriptor, data[: int(len(data) * self.share)])
            raise _Crash
        # the system may write less than asked for, too
        return self.write(descriptor, data[: max(1, len(data) // 2)])

    def do_sync(self, descriptor: int) -> None:
        if self._count():
            raise _Crash
        self.sync(descriptor)
        self.synced[os.readlink(f"/proc/self/fd/{descriptor}")] = os.fstat(descriptor).st_size

    def do_replace(self, path: Path, target: Path) -> Path:
        if self._count():
            raise _Crash
        return self.replace(path, target)

    def __enter__(self) -> None:
        self.patches = [
            mock.patch("sluice.etl.downstream.sinks.file.os.write", self.do_write),
            mock.patch("sluice.etl.downstream.sinks.file.os.fdatasync", self.do_sync),
            mock.patch("pathlib.Path.replace", lambda path, target: self.do_replace(path, target)),
        ]
        for patch in self.patches:
            patch.start()

    def __exit__(self, *_: object) -> None:
        for patch in self.patches:
            patch.stop()


def message(commit_ts: int, size: int) -> bytes:
    from sluice.etl.changes.write_plans._transactions import message_head

    return message_head(commit_ts, size) + bytes([commit_ts % 251]) * size


def story(after: int, sizes: list[int], batch: int) -> Iterator[Step]:
    """Transaction number i (from 1 on) with commit_ts i, in batches; the largest ones in pieces."""
    from sluice.etl.changes.write_plans._transactions import transaction_steps

    for first in range(after, len(sizes), batch):
        chosen = range(first, min(first + batch, len(sizes)))
        yield from transaction_steps(
            ((i + 1, 1, [bytes([(i + 1) % 251]) * sizes[i]]) for i in chosen), step_bytes=400
        )
        yield Step(CommitDetail(1), chosen[-1] + 1, changes=len(chosen))


@settings(
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_every_transaction_is_there_once_after_crashes_and_lost_pages(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("files")
    sizes = data.draw(
        st.lists(
            st.integers(0, 60) | st.sampled_from([399, 400, 900, 1500]), min_size=1, max_size=25
        )
    )
    batch = data.draw(st.integers(1, 9))
    options = File(dir=str(folder), max_file_bytes=data.draw(st.sampled_from([1, 100, 700, 10**6])))
    expected = [message(i + 1, size) for i, size in enumerate(sizes)]
    synced: dict[str, int] = {}
    for _ in range(8):
        sink = FileSink(options, CLUSTER)
        crash = data.draw(st.none() | st.integers(0, 30))
        try:
            checkpoint = sink.recover()
            after = checkpoint.commit_ts if checkpoint else 0
            assert written(folder) == expected[:after]
            if crash is None:
                sink.run(story(after, sizes, batch))
                break
            with _Crashing(crash, data.draw(st.sampled_from([0.0, 0.3, 0.99])), synced):
                sink.run(story(after, sizes, batch))
        except _Crash:
            pass
        finally:
            sink.close()
        # the machine went down: what was not synced may be lost, from any byte on
        if data.draw(st.booleans()):
            for path in list_files(folder)[-1:]:
                size = path.stat().st_size
                os.truncate(path, data.draw(st.integers(min(size, synced.get(str(path), 0)), size)))
    else:
        sink = FileSink(options, CLUSTER)
        checkpoint = sink.recover()
        sink.run(story(checkpoint.commit_ts if checkpoint else 0, sizes, batch))
        sink.close()
    assert written(folder) == expected


_WRITER = textwrap.dedent("""
    import sys
    from sluice.etl.apply import run_apply
    from sluice.etl.settings import Apply, Downstream, Relay, Settings, Upstream
    from sluice.etl.settings.sinks import File
    from tests.etl.preparing import local_preparer
    url, folder, hi = sys.argv[1], sys.argv[2], int(sys.argv[3])
    options = File(dir=folder, max_file_bytes=400_000, compression="gzip")
    downstream, apply = Downstream(type="file"), Apply(max_rows=2000)
    settings = Settings(Upstream("unused"), Relay(url), downstream, apply=apply, file=options)
    prepare = local_preparer(settings)
    run_apply(settings, until_ts=hi, run_seconds=240, prepare=prepare, on_batch=ON_BATCH)
    print("done", flush=True)
""").replace("ON_BATCH", ON_BATCH)


@pytest.mark.slow
def test_kill_9_at_any_time_leaves_no_gap_and_nothing_twice(
    shop: RelayLog, tmp_path: Path, original: list[bytes]
) -> None:
    last = shop.last()
    assert last is not None
    generator = random.Random(20261121)
    kills = 0
    finished = False
    for attempt in range(10):
        argv = [sys.executable, "-c", _WRITER, shop.url, str(tmp_path), str(last.hi)]
        finished = ends_by_itself(argv, generator.randrange(12) if attempt < 3 else None, generator)
        if finished:
            break
        kills += 1
    assert finished and kills
    assert written(tmp_path) == original


def test_a_record_cut_off_anywhere_is_written_again(tmp_path: Path) -> None:
    whole = b"".join(encode_record(message(i, 30)) for i in (1, 2))
    torn = encode_record(message(3, 30))
    # a power cut leaves zeros of what wasn't written
    for kept, zeros in itertools.product(range(len(torn)), (0, 100)):
        folder = tmp_path / f"{kept}-{zeros}"
        folder.mkdir()
        path = folder / new_name(0)
        path.write_bytes(whole + torn[:kept] + bytes(zeros))
        sink = FileSink(File(dir=str(folder)), CLUSTER)
        checkpoint = sink.recover()
        assert checkpoint is not None
        assert checkpoint.commit_ts == 2
        sink.run(story(2, [30, 30, 30], 5))
        sink.close()
        assert path.read_bytes() == whole + torn


def a_drainers_folder(folder: Path, commit_ts: int, content: bytes) -> None:
    (folder / "savepoint").write_text(
        f"consistent = false\ncommitTS = {commit_ts}\nschema-version = 46\n"
    )
    (folder / new_name(0)).write_bytes(content)


def test_a_drainers_folder_is_taken_over_behind_its_last_record(
    shop: RelayLog, tmp_path: Path, original: list[bytes]
) -> None:
    half = len(original) // 2
    a_drainers_folder(
        tmp_path,
        commit_ts_of(original[half - 200]),
        b"".join(map(encode_record, original[:half])) + b"\x04\x05\x1b\x1c\x33",
    )
    apply(shop, File(dir=str(tmp_path)))
    assert written(tmp_path) == original


def test_a_drainers_compressed_file_is_taken_over(
    shop: RelayLog, tmp_path: Path, original: list[bytes]
) -> None:
    (tmp_path / DRAINER_FILE.name).write_bytes(DRAINER_FILE.read_bytes())
    assert apply(shop, File(dir=str(tmp_path))) == commit_ts_of(original[-1])
    assert written(tmp_path) == original


def test_garbage_that_a_drainer_went_on_behind_is_reported_with_the_hint(tmp_path: Path) -> None:
    good, garbage = encode_record(message(1, 9)), b"\x04\x05\x1b\x1c\x05\0\0\0"
    a_drainers_folder(tmp_path, 2, good + garbage + encode_record(message(2, 9)))
    sink = FileSink(File(dir=str(tmp_path)), CLUSTER)
    with pytest.raises(
        ApplyError,
        match=(
            rf"record at byte {len(good)} .*behind it are whole ones.*truncate -s"
            rf" {len(good)}.*commitTS .* to 1,"
        ),
    ):
        sink.recover()
    sink.close()
    (path,) = tmp_path.glob("binlog-*")  # its name has the second in which it was made
    assert path.read_bytes() == good + garbage + encode_record(message(2, 9))


def test_a_drainer_can_go_on_where_the_sink_stopped(tmp_path: Path) -> None:
    import tomllib

    sink = FileSink(File(dir=str(tmp_path)), CLUSTER)
    sink.recover()
    sink.run(story(0, [5, 5], 2))
    sink.close()
    document = tomllib.loads((tmp_path / "savepoint").read_text())
    assert {key: document[key] for key in ("consistent", "commitTS", "schema-version")} == {
        "consistent": True,
        "commitTS": 2,
        "schema-version": 1,
    }


def test_files_shorter_than_what_was_durable_are_an_error(tmp_path: Path) -> None:
    options = File(dir=str(tmp_path))
    sink = FileSink(options, CLUSTER)
    sink.recover()
    sink.run(story(0, [5, 5], 2))
    sink.close()
    (path,) = list_files(tmp_path)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(ApplyError, match="another program cut it, or the disk lost data"):
        sink.recover()
    path.unlink()
    with pytest.raises(
        ApplyError,
        match="is not there, which the savepoint names as the file that was written last",
    ):
        sink.recover()
    sink.close()


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    first, second = (FileSink(File(dir=str(tmp_path)), CLUSTER) for _ in range(2))
    first.recover()
    with pytest.raises(CheckpointMovedError, match="another process writes binlog files"):
        second.recover()
    first.close()
    second.recover()
    second.close()


def test_two_clusters_cannot_share_a_folder(tmp_path: Path) -> None:
    sink = FileSink(File(dir=str(tmp_path)), CLUSTER)
    sink.recover()
    sink.run(story(0, [5], 1))
    sink.close()
    other = FileSink(File(dir=str(tmp_path)), 8)
    with pytest.raises(CheckpointError, match=r"belongs to cluster 7, the upstream is 8"):
        other.recover()
    other.close()


def test_a_folder_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    sink = FileSink(File(dir=str(tmp_path / "taken")), CLUSTER)
    with pytest.raises(ApplyError, match=r"taken.*\[file\] dir must be a folder"):
        sink.recover()


def test_the_checkpoint_moves_without_files_while_nothing_happens_upstream(tmp_path: Path) -> None:
    options = File(dir=str(tmp_path))
    sink = FileSink(options, CLUSTER)
    assert sink.recover() is None
    sink.run([Step(CommitDetail(3), 500)])
    checkpoint = sink.recover()
    sink.close()
    assert checkpoint is not None
    assert (checkpoint.commit_ts, checkpoint.schema_version) == (500, 3)
    assert list_files(tmp_path) == []


def test_statements_of_ddl_are_left_out_replaced_or_kept_for_a_tidb(tmp_path: Path) -> None:
    from sluice.tidb import pb

    def ddl(commit_ts: int, kind: int, query: str, **more: object) -> Step:
        table = {"id": 5, "schema_id": 1, "schema_name": "shop", "name": "t"}
        effect = {"schemas": {}, "tables": {"5": table}}
        return Step(
            ScopedDdl.from_json(
                {
                    "commit_ts": commit_ts,
                    "type": kind,
                    "query": query,
                    "schema_name": "shop",
                    "table_name": "t",
                    "schema_version": 9,
                    "effect": effect,
                    "before": {"5": table},
                    **more,
                }
            ),
            commit_ts,
        )

    sink = FileSink(File(dir=str(tmp_path)), CLUSTER)
    sink.recover()
    sink.run(
        [
            ddl(1, 16, "ALTER TABLE t SHARD_ROW_ID_BITS = 4"),
            ddl(2, 5, "select setval(`shop`.`s`, 7)"),
            ddl(
                3,
                5,
                "ALTER TABLE t ADD COLUMN b INT",
                replaced_by=["ALTER TABLE t ADD COLUMN b BIGINT;", "ALTER TABLE t COMMENT 'x'"],
            ),
            ddl(4, 5, "ALTER TABLE t ADD COLUMN c INT"),
            Step(CommitDetail(), 4),
        ]
    )
    sink.close()
    found = [pb.file_binlog.Binlog.FromString(message) for message in written(tmp_path)]
    assert [(binlog.commit_ts, binlog.ddl_query.decode()) for binlog in found] == [
        (1, "use `shop`; ALTER TABLE t SHARD_ROW_ID_BITS = 4;"),
        (3, "use `shop`; ALTER TABLE t ADD COLUMN b BIGINT; ALTER TABLE t COMMENT 'x';"),
        (4, "use `shop`; ALTER TABLE t ADD COLUMN c INT;"),
    ]
    checkpoint = SavepointFile(tmp_path / "savepoint", CLUSTER).load()
    assert checkpoint is not None
    assert checkpoint.checkpoint.schema_version == 9
