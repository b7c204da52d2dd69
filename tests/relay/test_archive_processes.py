"""Several processes at one archive: nothing is lost or doubled, and whoever reads can go on."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from archivekit import archive_all, merge_segments
from relaykit import BASE, HOUR, land

from sluice.relay import SKIP, Override, Overrides, RelayCorruptError, RelayLog
from sluice.relay.archive import Archive, ArchiveConflictError, sync_overrides, write_log
from sluice.relay.errors import RelayError

FOLDERS = [str(Path(__file__).parent), str(Path.cwd())]
WORKER = """
import random, secrets, sys
sys.path[:0] = sys.argv[4:]
from archivekit import merge_segments
from sluice.relay import RelayLog
from sluice.relay.archive import Archive, ArchiveConflictError, write_log

relay, archive = RelayLog.open(sys.argv[1] + "/relay"), Archive.open(sys.argv[1] + "/archive")
end, rng = relay.last().hi, random.Random(int(sys.argv[3]))
conflicts = 0
while (last := archive.last()) is None or last.hi < end:
    token = secrets.token_hex(4)
    try:
        if sys.argv[2] == "archive":
            windows = list(relay.windows(last.hi if last else 0))[: rng.randint(1, 4)]
            archive.append(write_log(relay.storage, archive.storage, windows, token).segment())
        elif last is not None and (many := len(archive.catalogue.load(last.day).segments)) > 1:
            merge_segments(archive, last.day, rng.randrange(many - 1), 2, token)
    except ArchiveConflictError:
        conflicts += 1
print(conflicts)
"""


def filled(tmp_path: Path, windows: int) -> RelayLog:
    relay = RelayLog.open(f"{tmp_path.as_uri()}/relay")
    for i in range(windows):
        land(relay, BASE + i * 10, BASE + i * 10 + 10, BASE + i * 10 + 3, BASE + i * 10 + 7)
    return relay


def is_whole(relay: RelayLog, archive: Archive) -> bool:
    segments = list(archive.segments())
    assert all(before.hi == after.lo for before, after in itertools.pairwise(segments))
    return archive.log.read(archive.log.windows(0)).equals(relay.read(relay.windows(0)))


@pytest.mark.slow
def test_archivers_and_compactors_at_once_make_one_chain_of_everything(tmp_path: Path) -> None:
    relay = filled(tmp_path, 24)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, tmp_path.as_uri(), role, str(seed), *FOLDERS],
            stdout=subprocess.PIPE,
        )
        for seed, role in enumerate(("archive", "archive", "compact"))
    ]
    assert [process.wait(timeout=120) for process in running] == [0] * len(running)
    for process in running:
        process.stdout.close()
    archive = Archive.open(f"{tmp_path.as_uri()}/archive")
    assert is_whole(relay, archive)
    archive.sweep(0)
    assert is_whole(relay, archive)


def test_a_volume_that_comes_too_late_is_refused_and_changes_nothing(tmp_path):
    relay = filled(tmp_path, 4)
    archive = Archive.open(f"{tmp_path.as_uri()}/archive")
    windows = list(relay.windows(0))
    late = write_log(relay.storage, archive.storage, windows[:2], "late").segment()
    archive_all(relay, archive, [3])
    with pytest.raises(ArchiveConflictError, match="another process has archived meanwhile"):
        archive.append(late)
    other = write_log(relay.storage, archive.storage, windows, "other").segment()
    with pytest.raises(RelayError, match=r"of cluster 1, and .* of 2.*\[archive\] url"):
        archive.append(
            type(other)(
                **{name: getattr(other, name) for name in other.__slots__} | {"cluster_id": 2}
            )
        )
    assert is_whole(relay, archive)


def days_of_windows(tmp_path: Path, count: int) -> tuple[RelayLog, int]:
    relay = RelayLog.open(f"{tmp_path.as_uri()}/relay")
    day = 24 * HOUR
    for i in range(count):
        land(relay, BASE + i * day, BASE + (i + 1) * day, BASE + i * day + 3)
    return relay, day


def test_who_stood_still_until_the_end_that_he_saw_was_removed_appends_nothing(
    tmp_path, monkeypatch
):
    relay, day = days_of_windows(tmp_path, 5)
    archive = Archive.open(f"{tmp_path.as_uri()}/archive")
    windows = list(relay.windows(0))
    archive.append(write_log(relay.storage, archive.storage, windows[:1], "first").segment())
    slow = Archive.open(archive.url)
    change = slow.catalogue.change

    def stand_still(name, changed):
        monkeypatch.setattr(slow.catalogue, "change", change)
        archive_all(relay, archive, [1])
        archive.remove(BASE + 4 * day)
        archive.sweep(0)
        return change(name, changed)

    monkeypatch.setattr(slow.catalogue, "change", stand_still)
    with pytest.raises(ArchiveConflictError, match="came in between others"):
        slow.append(write_log(relay.storage, archive.storage, windows[1:2], "slow").segment())
    assert [segment.lo for segment in archive.segments()] == [BASE + 4 * day]


def test_of_two_who_begin_an_archive_on_different_days_one_gives_way(tmp_path, monkeypatch):
    relay, _ = days_of_windows(tmp_path, 3)
    archive, other = (
        Archive.open(f"{tmp_path.as_uri()}/archive"),
        Archive.open(f"{tmp_path.as_uri()}/archive"),
    )
    windows = list(relay.windows(0))
    change = other.catalogue.change

    def be_second(name, changed):
        monkeypatch.setattr(other.catalogue, "change", change)
        archive.append(write_log(relay.storage, archive.storage, windows[:1], "first").segment())
        return change(name, changed)

    monkeypatch.setattr(other.catalogue, "change", be_second)
    with pytest.raises(ArchiveConflictError, match="came in between others"):
        other.append(write_log(relay.storage, archive.storage, windows[2:], "other").segment())
    archive_all(relay, archive, [1])
    assert is_whole(relay, archive)


def test_a_compaction_that_another_one_overtook_is_refused(tmp_path):
    relay = filled(tmp_path, 6)
    archive = Archive.open(f"{tmp_path.as_uri()}/archive")
    archive_all(relay, archive, [2])
    old = list(archive.segments())
    archive.begin_compaction(old[0].day, "slow")
    windows = list(archive.log.windows(old[0].lo, old[1].hi))
    slow = write_log(archive.storage, archive.storage, windows, "slow").segment()
    merge_segments(archive, old[0].day, 1, 2, "fast")
    with pytest.raises(ArchiveConflictError, match="has changed days/"):
        archive.replace(old[:2], slow)
    with pytest.raises(ValueError, match="doesn't cover the range"):
        archive.replace(old[:1], slow)
    assert is_whole(relay, archive)


def test_who_reads_goes_on_through_a_compaction_and_finds_his_place_when_the_old_files_are_gone(
    tmp_path,
):
    relay = filled(tmp_path, 8)
    archive = Archive.open(f"{tmp_path.as_uri()}/archive")
    archive_all(relay, archive, [2])
    expected = relay.read(relay.windows(0))
    reader = archive.log
    windows = reader.windows(0)
    seen = [next(windows)]
    merge_segments(archive, archive.first().day, 0, 4, "merged")
    seen += windows
    assert len(seen) == 4
    assert reader.read(seen).equals(expected)
    fresh = archive.log
    assert [window.hi for window in fresh.windows(0)] == [relay.last().hi]
    late = archive.log
    assert late.find(BASE + 25).lo == BASE
    assert archive.sweep(0) > 0
    old = archive.log
    old._catalogue = reader._catalogue
    old._chain = reader._chain
    assert old.find(BASE + 25).hi == relay.last().hi
    with pytest.raises(RelayCorruptError, match="the file is missing"):
        reader.read(seen)


def test_removing_takes_whole_volumes_from_the_oldest_on_and_never_the_newest(tmp_path):
    relay = RelayLog.open(f"{tmp_path.as_uri()}/relay")
    day = 24 * 3_600_000 << 18
    for i in range(8):
        land(relay, BASE + i * day // 2, BASE + (i + 1) * day // 2, BASE + i * day // 2 + 3)
    archive = Archive.open(f"{tmp_path.as_uri()}/archive")
    archive_all(relay, archive, [1])
    segments = list(archive.segments())
    assert archive.remove(segments[2].hi - 1) == segments[:2]
    assert list(archive.segments()) == segments[2:]
    archive.sweep(0)
    days = [f"log/{day}" for day in archive.storage.names("log")]
    left = {f"{day}/{name}" for day in days for name in archive.storage.names(day)}
    assert left == {file.path for segment in segments[2:] for file in segment.files}
    assert archive.remove(1 << 62) == segments[2:-1]
    archive.sweep(0)
    assert list(archive.segments()) == segments[-1:]
    assert archive.catalogue.days() == [segments[-1].day]
    assert archive.log.find(0).lo == segments[-1].lo


FULL = """
import resource, signal, sys
sys.path[:0] = sys.argv[2:]
from sluice.relay import RelayLog
from sluice.relay.archive import Archive, write_log
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
relay, archive = RelayLog.open(sys.argv[1] + "/relay"), Archive.open(sys.argv[1] + "/archive")
windows = list(relay.windows(0))
for limit in range(200, 1_000_000, 300):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        archive.append(write_log(relay.storage, archive.storage, windows, f"t{limit}").segment())
        break
    except OSError as error:
        assert "archive" in str(error), error
        assert archive.last() is None
print(limit)
"""


def test_a_disk_full_at_any_byte_leaves_the_archive_as_it_was_and_the_next_attempt_finds_room(
    tmp_path,
):
    relay = filled(tmp_path, 5)
    told = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path.as_uri(), *FOLDERS],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(told.stdout) > 1_000
    archive = Archive.open(f"{tmp_path.as_uri()}/archive")
    assert is_whole(relay, archive)


def test_an_archive_in_an_object_store_is_appended_to_read_and_compacted(tmp_path, s3_server):
    relay = filled(tmp_path, 6)
    archive = Archive.open(s3_server.url("archive"))
    archive_all(relay, archive, [2])
    assert is_whole(relay, archive)
    merge_segments(archive, archive.first().day, 0, 3, "merged")
    assert archive.sweep(0) == 6
    assert is_whole(relay, archive)
    assert archive.log.find(BASE + 25).hi == relay.last().hi


def test_overrides_go_with_the_windows_and_one_that_was_used_stays(tmp_path):
    relay = filled(tmp_path, 2)
    archive = Archive.open(f"{tmp_path.as_uri()}/archive")
    kept, used, late = (Override(BASE + i, SKIP, why=f"{i}") for i in (3, 7, 13))
    for override in (kept, used, late):
        relay.overrides.add(override)
    relay.overrides.mark_used([used])
    assert sync_overrides(relay.overrides, archive.overrides_of()) == 3
    assert sync_overrides(relay.overrides, archive.overrides_of()) == 0
    relay.overrides.remove(late.commit_ts)
    relay.overrides.remove(used.commit_ts)
    changed = Override(kept.commit_ts, SKIP, why="another reason")
    relay.overrides.remove(kept.commit_ts)
    relay.overrides.add(changed)
    sync_overrides(relay.overrides, archive.overrides_of())
    assert archive.log.overrides.list() == [changed, used]
    assert isinstance(archive.log.overrides, Overrides)
