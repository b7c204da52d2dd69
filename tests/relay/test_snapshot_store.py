"""Snapshots in an archive: published once, forgotten without loss to those that refer to them."""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import pytest
from obstore.store import LocalStore

from sluice.relay.archive import (
    ArchiveSnapshot,
    PendingSnapshot,
    SnapshotFile,
    SnapshotStore,
    SnapshotTable,
    snapshot_id,
)
from sluice.relay.errors import RelayCorruptError, RelayError
from sluice.relay.storage import Storage, open_storage
from sluice.relay.storage._object_store import ObjectStorage

ROW = b"row" * 100


@pytest.fixture(params=["local", "objects"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return open_storage(f"file://{tmp_path}/archive")
    return ObjectStorage(LocalStore(tmp_path), tmp_path.as_uri())


def file_of(storage: Storage, folder: str, name: str = "1.parquet") -> SnapshotFile:
    path = f"snapshots/{folder}/7/{name}"
    with storage.new_file(path) as file:
        file.write(ROW)
    return SnapshotFile(path, 3, len(ROW), google_crc32c.value(ROW), 900)


def snapshot_of(ts: int, token: str, *files: SnapshotFile) -> ArchiveSnapshot:
    table = SnapshotTable("shop", "orders", {"id": 7, "name": "orders"}, files)
    return ArchiveSnapshot(
        snapshot_id(ts, token),
        ts,
        12,
        99,
        1_700_000_000_000,
        "a test",
        ({"id": 1, "name": "shop"},),
        (table,),
    )


def made(
    snapshots: SnapshotStore, storage: Storage, ts: int, token: str, *older: SnapshotFile
) -> ArchiveSnapshot:
    name = snapshot_id(ts, token)
    snapshots.begin(
        name, PendingSnapshot("snapshot", tuple({file.path.split("/")[1] for file in older}))
    )
    return snapshots.publish(snapshot_of(ts, token, *older, file_of(storage, name)))


def exists(storage: Storage, file: SnapshotFile) -> bool:
    try:
        storage.read(file.path)
    except FileNotFoundError:
        return False
    return True


def test_a_snapshot_is_there_from_its_manifest_on_and_reads_back_equal(storage: Storage) -> None:
    snapshots = SnapshotStore(storage)
    name = snapshot_id(400, "a1")
    snapshots.begin(name, PendingSnapshot("snapshot-3"))
    file = file_of(storage, name)
    assert snapshots.all() == []
    assert snapshots.find(name) is None
    assert snapshots.pending(name) is not None
    snapshot = snapshots.publish(snapshot_of(400, "a1", file))
    assert snapshots.all() == [snapshot] == [snapshots.get(name)]
    assert snapshots.pending(name) is None
    assert snapshots.content(file) == ROW
    assert (snapshot.rows, snapshot.file_bytes, snapshot.row_bytes) == (3, 300, 900)


def test_the_latest_snapshot_is_the_youngest_that_is_not_later(storage: Storage) -> None:
    snapshots = SnapshotStore(storage)
    old, young = made(snapshots, storage, 100, "a"), made(snapshots, storage, 9_000, "b")
    snapshots.begin(snapshot_id(8_000, "c"), PendingSnapshot("snapshot"))
    assert [snapshots.latest(ts) for ts in (99, 100, 8_999, 9_000)] == [None, old, old, young]


def test_what_lies_in_its_folder_and_is_not_named_goes_when_a_snapshot_is_published(
    storage: Storage,
) -> None:
    snapshots = SnapshotStore(storage)
    name = snapshot_id(400, "a1")
    snapshots.begin(name, PendingSnapshot("snapshot"))
    kept, left = file_of(storage, name), file_of(storage, name, "1-again.parquet")
    snapshots.publish(snapshot_of(400, "a1", kept))
    assert exists(storage, kept)
    assert not exists(storage, left)


def test_two_who_publish_the_same_snapshot_both_have_the_first_ones(storage: Storage) -> None:
    snapshots = SnapshotStore(storage)
    first = made(snapshots, storage, 400, "a1")
    again = file_of(storage, first.id, "2.parquet")
    assert snapshots.publish(snapshot_of(400, "a1", again)) == first
    assert snapshots.all() == [first]


def test_files_that_a_younger_snapshot_refers_to_outlive_their_own_snapshot(
    storage: Storage,
) -> None:
    snapshots = SnapshotStore(storage)
    old = made(snapshots, storage, 100, "a")
    (shared,) = old.tables[0].files
    young = made(snapshots, storage, 200, "b", shared)
    assert young.refers_to == (old.id,)
    snapshots.forget(old.id)
    assert snapshots.all() == [young]
    assert exists(storage, shared)
    snapshots.forget(young.id)
    assert snapshots.all() == []
    assert not exists(storage, shared)


def test_files_that_a_snapshot_in_the_making_may_refer_to_stay_until_it_is_made(
    storage: Storage,
) -> None:
    snapshots = SnapshotStore(storage)
    old = made(snapshots, storage, 100, "a")
    (shared,) = old.tables[0].files
    name = snapshot_id(200, "b")
    assert snapshots.begin(name, PendingSnapshot("snapshot", (old.id,))) == [old.id]
    snapshots.forget(old.id)
    assert exists(storage, shared)
    snapshots.publish(snapshot_of(200, "b", file_of(storage, name)))
    snapshots.sweep()
    assert not exists(storage, shared)


def test_files_of_a_forgotten_snapshot_may_be_referred_to_by_way_of_one_that_has_them(
    storage: Storage,
) -> None:
    snapshots = SnapshotStore(storage)
    old = made(snapshots, storage, 100, "a")
    (shared,) = old.tables[0].files
    young = made(snapshots, storage, 200, "b", shared)
    snapshots.forget(old.id)
    assert snapshots.begin(
        snapshot_id(300, "c"), PendingSnapshot("snapshot", (old.id, young.id))
    ) == [young.id]
    snapshots.forget(young.id)
    assert exists(storage, shared)
    snapshots.publish(snapshot_of(300, "c", shared))
    snapshots.sweep()
    assert exists(storage, shared)


def test_who_goes_on_with_a_snapshot_still_has_the_files_that_it_was_to_refer_to(
    storage: Storage,
) -> None:
    snapshots = SnapshotStore(storage)
    old = made(snapshots, storage, 100, "a")
    (shared,) = old.tables[0].files
    name = snapshot_id(200, "b")
    snapshots.begin(name, PendingSnapshot("snapshot", (old.id,)))
    snapshots.forget(old.id)
    assert snapshots.begin(name, PendingSnapshot("snapshot", (old.id,))) == [old.id]
    young = snapshots.publish(snapshot_of(200, "b", shared))
    snapshots.sweep()
    assert snapshots.content(young.tables[0].files[0]) == ROW


def test_a_snapshot_that_was_forgotten_before_is_not_referred_to(storage: Storage) -> None:
    snapshots = SnapshotStore(storage)
    old = made(snapshots, storage, 100, "a")
    snapshots.forget(old.id)
    assert snapshots.begin(snapshot_id(200, "b"), PendingSnapshot("snapshot", (old.id,))) == []


def test_who_wakes_up_can_not_publish_a_snapshot_that_was_forgotten(storage: Storage) -> None:
    snapshots = SnapshotStore(storage)
    name = snapshot_id(400, "a1")
    snapshots.begin(name, PendingSnapshot("snapshot"))
    file = file_of(storage, name)
    snapshots.forget(name)
    assert not exists(storage, file)
    with pytest.raises(RelayError, match="forgotten while it was being made"):
        snapshots.publish(snapshot_of(400, "a1", file))
    with pytest.raises(RelayError, match="forgotten while it was being made"):
        snapshots.begin(name, PendingSnapshot("snapshot"))
    assert snapshots.all() == []


def test_what_came_after_a_snapshot_was_forgotten_goes_with_the_next_sweep(
    storage: Storage,
) -> None:
    snapshots = SnapshotStore(storage)
    name = snapshot_id(400, "a1")
    snapshots.begin(name, PendingSnapshot("snapshot"))
    snapshots.forget(name)
    late = file_of(storage, name)
    snapshots.sweep()
    assert not exists(storage, late)


def test_nothing_goes_of_a_snapshot_whose_manifest_is_missing(storage: Storage) -> None:
    snapshots = SnapshotStore(storage)
    snapshot = made(snapshots, storage, 400, "a1")
    manifest = storage.read(snapshot.path)
    storage.remove(snapshot.path)
    snapshots.sweep()
    assert snapshots.all() == []
    storage.create(snapshot.path, manifest)
    assert snapshots.all() == [snapshot]
    assert exists(storage, snapshot.tables[0].files[0])


def test_a_damaged_manifest_is_named_and_nothing_is_removed_meanwhile(storage: Storage) -> None:
    snapshots = SnapshotStore(storage)
    old, other = made(snapshots, storage, 100, "a"), made(snapshots, storage, 200, "b")
    text = storage.read(other.path)
    storage.replace(other.path, text.replace(b"orders", b"others", 1))
    for attempt in (snapshots.all, snapshots.sweep, lambda: snapshots.forget(old.id)):
        with pytest.raises(RelayCorruptError, match=f"{other.path}.*checksum"):
            attempt()
    assert exists(storage, old.tables[0].files[0])


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_file_is_named_with_the_hint(storage: Storage, damage: str) -> None:
    snapshots = SnapshotStore(storage)
    snapshot = made(snapshots, storage, 100, "a")
    (file,) = snapshot.tables[0].files
    content = {"flip": b"X" + ROW[1:], "cut": ROW[:-1], "gone": b""}[damage]
    storage.remove(file.path) if damage == "gone" else storage.replace(file.path, content)
    with pytest.raises(RelayCorruptError, match=f"{file.path}.*sluice snapshot forget"):
        snapshots.content(file)
