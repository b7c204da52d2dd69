"""Landed changes are archived once, whichever process is killed, frozen, or archives meanwhile."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sluice.etl.history.archive import (
    ArchiveGapError,
    NotYetLandedError,
    OtherClusterError,
    archive_through,
    check,
    compact,
)
from sluice.etl.history.archive._pending import PendingSegments, remove_abandoned
from sluice.etl.history.archive.archiver import CONSUMER, QUIET_MS, Archiver
from sluice.etl.history.archive.plan import plan_segments, windows_of
from sluice.relay import RelayError, RelayLog
from sluice.relay.archive import Archive, ArchiveSegment
from sluice.relay.consumers import Consumers
from tests.etl.history.archive.archiving import (
    Growing,
    LocalJobs,
    differences,
    log_files,
    settings_of,
)
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.relay.relaykit import BASE, HOUR, window

MINUTE = HOUR // 60


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> RelayLog:
    """The recording shop in some fifty windows."""
    return land(RECORDINGS / "shop", tmp_path_factory.mktemp("shop").as_uri(), 400)


def lake_rows(segments: list[ArchiveSegment]) -> dict[str, int]:
    """By table."""
    found: dict[str, int] = {}
    for file in (file for segment in segments for file in segment.lake):
        found[file.table] = found.get(file.table, 0) + file.rows
    return found


def archiver(settings, **wishes) -> Archiver:
    return Archiver(settings, **{"jobs": LocalJobs(settings)} | wishes)


@pytest.mark.slow
def test_a_recording_that_is_archived_while_it_lands_is_in_the_archive_change_by_change_once(
    shop, tmp_path
):
    settings = settings_of(tmp_path.as_uri())
    growing, chance = Growing(shop, settings.relay.url), random.Random(5)
    archiving = archiver(settings, segment_bytes=60_000)
    while growing.land(chance.randrange(1, 9)):
        archiving.through()
    archive = Archive.open(settings.archive_url)
    assert archiving.summary.segments > 10
    assert differences(growing.relay, archive) == []
    assert archiving.summary.changes == sum(window.changes for window in growing.relay.windows(0))
    assert check(settings, jobs=LocalJobs(settings)).problems == []
    assert archiving.summary.hi == Consumers(growing.relay).positions()[CONSUMER]
    assert PendingSegments(archive.storage).list() == []


def test_whoever_needs_a_moment_has_it_archived_and_nothing_is_done_twice(shop, tmp_path):
    settings = settings_of(tmp_path.as_uri())
    growing = Growing(shop, settings.relay.url)
    third, *_, last = growing.land(3)[2], *growing.land(5)
    archiver(settings, segment_bytes=1).through(third.hi - 1)
    assert Archive.open(settings.archive_url).last().hi == third.hi
    # Without a Spark that answers: there is nothing to be done.
    assert archive_through(settings, third.hi).segments == 0
    with pytest.raises(NotYetLandedError, match=r"isn't in .* yet: landing has come to"):
        archive_through(settings, last.hi + 1)
    assert archiver(settings).through() is None
    assert differences(growing.relay, Archive.open(settings.archive_url)) == []


def test_the_archive_is_among_those_who_need_the_relay_log_before_it_has_anything_of_it(
    shop, tmp_path, monkeypatch
):
    settings = settings_of(tmp_path.as_uri())
    growing = Growing(shop, settings.relay.url)
    landed = growing.land(6)
    consumers = Consumers(growing.relay)

    def refuse(archive: Archive, segment: ArchiveSegment) -> None:
        raise RelayError("the archive takes nothing")

    with monkeypatch.context() as patch, pytest.raises(RelayError, match="takes nothing"):
        patch.setattr(Archive, "append", refuse)
        archiver(settings).through(landed[2].hi)
    assert consumers.positions() == {CONSUMER: landed[0].lo}
    archiver(settings, segment_bytes=1).through(landed[2].hi)
    assert consumers.positions() == {CONSUMER: landed[2].hi}


def test_a_relay_log_without_what_follows_the_archive_and_one_of_another_cluster_are_refused(
    shop, tmp_path
):
    settings = settings_of(tmp_path.as_uri())
    growing = Growing(shop, settings.relay.url)
    landed = growing.land(6)
    archiver(settings).through(landed[1].hi)
    growing.relay.purge(landed[3].hi)
    with pytest.raises(ArchiveGapError, match=r"ends at .*, but the first window behind it"):
        archiver(settings).through()
    other = settings_of((tmp_path / "other").as_uri(), url=settings.archive_url)
    relay = RelayLog.open(other.relay.url)
    relay.commit(window(landed[1].hi, landed[2].hi, cluster_id=8))
    with pytest.raises(
        OtherClusterError, match=r"keeps the past of cluster 7; .* has windows of cluster 8"
    ):
        archiver(other).through()


def test_an_hour_without_traffic_is_a_few_small_segments_made_without_spark_and_one_window_each(
    tmp_path,
):
    settings = settings_of(tmp_path.as_uri())
    relay = RelayLog.open(settings.relay.url)
    jobs = LocalJobs(settings)
    archiving = archiver(settings, jobs=jobs)
    for minute in range(60):
        for part in range(5):
            lo = BASE + minute * MINUTE + part * MINUTE // 5
            relay.commit(window(lo, lo + MINUTE // 5))
        archiving.through(quiet_ms=QUIET_MS)
    archiving.through()
    segments = list(Archive.open(settings.archive_url).segments())
    assert (len(segments), jobs.made) == (6, 0)
    assert [segment.windows for segment in segments] == [1] * 6
    assert all(segment.log is None and segment.bytes < 2_000 for segment in segments)
    assert segments[-1].hi == BASE + HOUR


def test_a_segment_ends_with_its_day_but_for_the_first_one_of_a_relay_log_that_begins_at_nought():
    day = 24 * HOUR
    begin = BASE - BASE % day
    chain = [
        window(0, begin + HOUR),
        *(window(begin + n * HOUR, begin + (n + 1) * HOUR) for n in range(1, 50)),
    ]
    assert [(plan.lo, plan.hi) for plan in plan_segments(chain)] == [(0, begin + 50 * HOUR)]
    ranges = [(plan.lo, plan.hi) for plan in plan_segments(chain[1:])]
    assert ranges == [
        (begin + HOUR, begin + day),
        (begin + day, begin + 2 * day),
        (begin + 2 * day, begin + 50 * HOUR),
    ]


def test_what_a_worker_is_told_of_a_segment_names_each_table_once_however_many_windows_it_has():
    tables = {str(n): {"id": n, "name": f"t{n}", "columns": ["c" * 40] * 20} for n in range(20)}
    chain = [window(BASE + n, BASE + n + 1, tables=tables) for n in range(700)]
    (plan,) = plan_segments(chain)
    apart = sum(len(window(each.lo, each.hi).to_json()) for each in chain)
    assert len(plan.records) < apart + len(chain[0].to_json()) + 700 * 3 * len(tables)
    assert 20 * len(plan.records) < sum(len(each.to_json()) for each in chain)
    assert windows_of(plan.records) == chain


CRASHING = """
import os, signal, sys
from pathlib import Path
import obstore
from sluice.etl.history.archive import archiver as module
from tests.etl.history.archive.archiving import LocalJobs, settings_of

url, first, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
settings = settings_of(url)

def count_down(left):
    def counted(method):
        def call(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return method(*arguments, **options)
        return call
    folder = ((os, "fsync"), (os, "link"), (os, "write"), (Path, "unlink"), (Path, "replace"))
    store = [(obstore, call) for call in ("put", "delete", "get", "head")]
    for owner, name in (*folder, *store):
        setattr(owner, name, counted(getattr(owner, name)))

kills = 0
while True:
    child = os.fork()
    if not child:
        count_down([first + kills * step])
        module.Archiver(settings, jobs=LocalJobs(settings), segment_bytes=100_000).through()
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
    kills += 1
print(kills)
"""


@pytest.mark.slow
def test_after_kill_9_at_any_write_the_archive_goes_on_without_a_loss_or_a_double(shop, tmp_path):
    settings = settings_of(tmp_path.as_uri())
    growing = Growing(shop, settings.relay.url)
    growing.land(20)
    killed = subprocess.run(
        [sys.executable, "-c", CRASHING, settings.relay.url, "1", "9"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert int(killed.stdout) > 5
    archive = Archive.open(settings.archive_url)
    assert differences(growing.relay, archive) == []
    assert check(settings, jobs=LocalJobs(settings)).problems == []
    folder = tmp_path / "archive"
    named, there = log_files(archive, folder)
    assert all(Path(path).name.startswith(".") for path in there - named), (
        "only what was never finished"
    )
    assert there > named or (there == named and archive.storage.is_remote)
    assert remove_abandoned(archive, lambda: False, given_up_ms=0) == len(there - named)
    assert log_files(archive, folder) == (named, named)
    assert differences(growing.relay, archive) == []


class Interrupted(LocalJobs):
    """Between making a segment and giving it back, something happens."""

    def __init__(self, settings, meanwhile) -> None:
        super().__init__(settings)
        self._meanwhile = meanwhile

    def run(self, task):
        answer = super().run(task)
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
        return answer


def test_an_archiver_that_froze_while_another_archived_appends_nothing_and_its_files_are_swept(
    shop, tmp_path
):
    settings = settings_of(tmp_path.as_uri())
    growing = Growing(shop, settings.relay.url)
    growing.land(8)
    frozen = archiver(
        settings, jobs=Interrupted(settings, archiver(settings, segment_bytes=1).through)
    )
    frozen.through()
    assert frozen.summary.segments == 0
    archive = Archive.open(settings.archive_url)
    assert len(list(archive.segments())) == 8
    assert differences(growing.relay, archive) == []
    named, there = log_files(archive, tmp_path / "archive")
    assert named == there
    assert len(PendingSegments(archive.storage).list()) == 1, "a worker of it may be writing yet"
    remove_abandoned(archive, lambda: False, given_up_ms=0)
    assert PendingSegments(archive.storage).list() == []


@pytest.mark.slow
def test_a_pass_goes_on_with_its_claim_when_somebody_who_needs_a_moment_archives_beside_it(
    shop, tmp_path, caplog
):
    settings = settings_of(tmp_path.as_uri())
    growing = Growing(shop, settings.relay.url)
    landed = growing.land(8)
    beside = []

    def need_a_moment() -> None:
        beside.append(archive_through(settings, landed[2].hi, jobs=LocalJobs(settings)))

    running = archiver(settings, jobs=Interrupted(settings, need_a_moment), segment_bytes=1)
    with caplog.at_level("INFO", "sluice.archive"):
        running.through()
    assert (beside[0].segments, beside[0].hi) == (1, landed[2].hi)
    assert (running.summary.segments, running.summary.hi, running.summary.retries) == (
        5,
        landed[-1].hi,
        0,
    )
    assert differences(growing.relay, Archive.open(settings.archive_url)) == []
    assert not [
        record
        for record in caplog.records
        if record.levelname != "INFO" or "is waited for" in record.message
    ]


def test_who_needs_a_moment_waits_for_a_pass_that_was_faster_and_makes_what_it_leaves(
    shop, tmp_path, monkeypatch
):
    settings = settings_of(tmp_path.as_uri())
    growing = Growing(shop, settings.relay.url)
    landed = growing.land(8)
    monkeypatch.setattr("sluice.etl.history.archive.archiver._PEER_TIMEOUT_BESIDE_S", 0.0)
    monkeypatch.setattr("sluice.etl.history.archive.archiver._CHECK_INTERVAL_S", 0.0)
    running = archiver(settings, segment_bytes=1)
    done = archive_through(
        settings, jobs=Interrupted(settings, lambda: running.through(landed[2].hi))
    )
    assert (running.summary.segments, done.segments, done.hi) == (3, 1, landed[-1].hi)
    assert differences(growing.relay, Archive.open(settings.archive_url)) == []


@pytest.mark.slow
def test_one_that_stood_still_right_before_it_appended_appends_nothing(shop, tmp_path, monkeypatch):
    settings = settings_of(tmp_path.as_uri())
    growing = Growing(shop, settings.relay.url)
    growing.land(8)
    append = Archive.append

    def late(archive: Archive, segment: ArchiveSegment) -> None:
        monkeypatch.setattr(Archive, "append", append)
        archiver(settings, segment_bytes=1).through()
        append(archive, segment)

    monkeypatch.setattr(Archive, "append", late)
    frozen = archiver(settings)
    frozen.through()
    assert frozen.summary.segments == 0
    assert differences(growing.relay, Archive.open(settings.archive_url)) == []


def test_an_archiver_that_is_taken_over_from_goes_on_where_the_other_one_dies(
    shop, tmp_path, monkeypatch
):
    settings = settings_of(tmp_path.as_uri())
    growing = Growing(shop, settings.relay.url)
    landed = growing.land(8)
    monkeypatch.setattr("sluice.etl.history.archive.archiver._PEER_TIMEOUT_S", 0.0)
    monkeypatch.setattr("sluice.etl.history.archive.archiver._CHECK_INTERVAL_S", 0.0)
    dies = archiver(settings, segment_bytes=1)
    first = archiver(settings, jobs=Interrupted(settings, lambda: dies.through(landed[2].hi)))
    first.through()
    assert (dies.summary.segments, first.summary.segments) == (3, 1)
    assert differences(growing.relay, Archive.open(settings.archive_url)) == []


def test_a_damaged_a_missing_and_a_forgotten_file_are_found_and_named(shop, tmp_path):
    settings = settings_of(tmp_path.as_uri())
    growing = Growing(shop, settings.relay.url)
    growing.land(12)
    archiver(settings, segment_bytes=20_000).through()
    segments = list(Archive.open(settings.archive_url).segments())
    assert len(segments) >= 3
    folder = tmp_path / "archive"
    log, index = folder / segments[0].log.path, folder / segments[1].index.path
    storage = Archive.open(settings.archive_url).storage
    data = bytearray(storage.read(segments[0].log.path))
    data[len(data) // 2] ^= 1
    storage.replace(segments[0].log.path, bytes(data))
    storage.remove(segments[1].index.path)
    found = check(settings, jobs=LocalJobs(settings))
    assert (found.segments, found.hi) == (len(segments), segments[-1].hi)
    assert sorted(
        path for path in (log, index) if any(path.name in line for line in found.problems)
    ) == sorted((log, index))
    assert len(found.problems) == 2
    later = check(settings, segments[1].hi, jobs=LocalJobs(settings))
    assert (later.segments, later.problems) == (len(segments) - 2, [])


@pytest.mark.slow
def test_compacting_many_segments_leaves_the_same_changes_in_few_and_readers_have_time(
    shop, tmp_path
):
    settings = settings_of(tmp_path.as_uri())
    growing = Growing(shop, settings.relay.url)
    growing.land(40)
    archiver(settings, segment_bytes=1).through()
    archive = Archive.open(settings.archive_url)
    before = list(archive.segments())
    done = compact(settings, jobs=LocalJobs(settings, settings.archive_url))
    after = list(archive.segments())
    assert (done.segments, done.into) == (len(before), 1)
    assert len(before) == 40 and len(after) == 1
    assert differences(growing.relay, archive) == []
    assert after[0].binlog_bytes == sum(segment.binlog_bytes for segment in before)
    read_by_others = [file for segment in before for file in (segment.log, segment.index)]
    assert log_files(archive, tmp_path / "archive")[1] >= {file.path for file in read_by_others}
    assert lake_rows(before) == lake_rows(after)
    folders = [Path(file.path).parent for file in after[0].lake]
    assert (
        len(folders)
        == len(set(folders))
        == len({Path(file.path).parent for v in before for file in v.lake})
    )
    archive.sweep(0)
    named, there = log_files(archive, tmp_path / "archive")
    assert named == there
    assert check(settings, jobs=LocalJobs(settings)).problems == []


def lake_values(archive: Archive) -> dict[str, list[tuple]]:
    """By operation, what each row of a table says of its key, its time and a value."""
    found = {}
    for file in (
        file for segment in archive.segments() for file in segment.lake if file.table == "cart"
    ):
        columns = ["_op", "uid", "sku", "_commit_ts", "qty"]
        with archive.storage.open(file.path) as opened:
            rows = pq.read_table(opened).select(columns).to_pydict()
        for op, *values in zip(*rows.values(), strict=True):
            found.setdefault(op, []).append(tuple(values))
    return {op: sorted(rows, key=repr) for op, rows in found.items()}


@pytest.mark.slow
def test_a_lake_without_old_values_has_their_keys_and_follows_a_changed_setting(shop, tmp_path):
    whole = settings_of(tmp_path.as_uri())
    keys, none = (settings_of(tmp_path.as_uri(), lake=how) for how in ("new-values", "none"))
    growing, folder = Growing(shop, whole.relay.url), tmp_path / "archive"
    archive = Archive.open(whole.archive_url)
    seen = []
    for settings in (whole, keys, none):
        growing.land(3)
        archiver(settings, segment_bytes=1).through()
        seen.append(lake_values(archive))
        assert differences(growing.relay, archive) == []
    only_whole, both, after_none = seen
    assert len(both["update_preimage"]) > len(only_whole["update_preimage"]) and after_none == both
    old = [
        row for op in ("update_preimage", "delete") for row in both[op] if row not in only_whole[op]
    ]
    assert old and all(uid is not None and qty is None for uid, _, _, qty in old)
    compact(keys, jobs=LocalJobs(keys, keys.archive_url))
    without = lake_values(archive)
    assert all(row[-1] is None for op in ("update_preimage", "delete") for row in without[op])
    again = settings_of((tmp_path / "again").as_uri())
    Growing(shop, again.relay.url).land(9)
    archiver(again).through()
    everything = lake_values(Archive.open(again.archive_url))
    for op, rows in everything.items():
        assert [row[:-1] for row in without[op]] == [row[:-1] for row in rows], (
            "each image is there, by its key"
        )
        if op in ("insert", "update_postimage"):
            assert without[op] == rows
    archive.sweep(0)
    named, there = log_files(archive, folder)
    assert named == there and check(whole, jobs=LocalJobs(whole)).problems == []


@pytest.mark.slow
def test_a_compaction_that_stood_still_while_another_one_compacted_changes_nothing(shop, tmp_path):
    settings = settings_of(tmp_path.as_uri())
    growing = Growing(shop, settings.relay.url)
    growing.land(9)
    archiver(settings, segment_bytes=1).through()
    made = []

    def other() -> None:
        made.append(compact(settings, jobs=LocalJobs(settings, settings.archive_url)))

    jobs = Interrupted(settings, other)
    jobs._work = LocalJobs(settings, settings.archive_url)._work
    frozen = compact(settings, jobs=jobs)
    assert (frozen.into, made[0].into) == (0, 1)
    archive = Archive.open(settings.archive_url)
    assert len(list(archive.segments())) == 1
    assert differences(growing.relay, archive) == []
    archive.sweep(0)
    remove_abandoned(archive, lambda: False, given_up_ms=0)
    named, there = log_files(archive, tmp_path / "archive")
    assert named == there
