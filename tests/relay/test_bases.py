"""Bases in an archive: published once, forgotten without taking from others what they refer to."""

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
    path = f"bases/{folder}/7/{name}"
    with storage.new_file(path) as file:
        file.write(ROW)
    return SnapshotFile(path, 3, len(ROW), google_crc32c.value(ROW), 900)


def base_of(ts: int, token: str, *files: SnapshotFile) -> ArchiveSnapshot:
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
    bases: SnapshotStore, storage: Storage, ts: int, token: str, *older: SnapshotFile
) -> ArchiveSnapshot:
    name = snapshot_id(ts, token)
    bases.begin(name, PendingSnapshot("base", tuple({file.path.split("/")[1] for file in older})))
    return bases.publish(base_of(ts, token, *older, file_of(storage, name)))


def exists(storage: Storage, file: SnapshotFile) -> bool:
    try:
        storage.read(file.path)
    except FileNotFoundError:
        return False
    return True


def test_a_base_is_there_from_its_manifest_on_and_reads_back_equal(storage: Storage) -> None:
    bases = SnapshotStore(storage)
    name = snapshot_id(400, "a1")
    bases.begin(name, PendingSnapshot("base-3"))
    file = file_of(storage, name)
    assert bases.all() == []
    assert bases.find(name) is None
    assert bases.pending(name) is not None
    base = bases.publish(base_of(400, "a1", file))
    assert bases.all() == [base] == [bases.get(name)]
    assert bases.pending(name) is None
    assert bases.content(file) == ROW
    assert (base.rows, base.file_bytes, base.row_bytes) == (3, 300, 900)


def test_the_latest_base_is_the_youngest_that_is_not_later(storage: Storage) -> None:
    bases = SnapshotStore(storage)
    old, young = made(bases, storage, 100, "a"), made(bases, storage, 9_000, "b")
    bases.begin(snapshot_id(8_000, "c"), PendingSnapshot("base"))
    assert [bases.latest(ts) for ts in (99, 100, 8_999, 9_000)] == [None, old, old, young]


def test_what_lies_in_its_folder_and_is_not_named_goes_when_a_base_is_published(
    storage: Storage,
) -> None:
    bases = SnapshotStore(storage)
    name = snapshot_id(400, "a1")
    bases.begin(name, PendingSnapshot("base"))
    kept, left = file_of(storage, name), file_of(storage, name, "1-again.parquet")
    bases.publish(base_of(400, "a1", kept))
    assert exists(storage, kept)
    assert not exists(storage, left)


def test_two_who_publish_the_same_base_both_have_the_first_ones(storage: Storage) -> None:
    bases = SnapshotStore(storage)
    first = made(bases, storage, 400, "a1")
    again = file_of(storage, first.id, "2.parquet")
    assert bases.publish(base_of(400, "a1", again)) == first
    assert bases.all() == [first]


def test_files_that_a_younger_base_refers_to_outlive_their_own_base(storage: Storage) -> None:
    bases = SnapshotStore(storage)
    old = made(bases, storage, 100, "a")
    (shared,) = old.tables[0].files
    young = made(bases, storage, 200, "b", shared)
    assert young.refers_to == (old.id,)
    bases.forget(old.id)
    assert bases.all() == [young]
    assert exists(storage, shared)
    bases.forget(young.id)
    assert bases.all() == []
    assert not exists(storage, shared)


def test_files_that_a_base_in_the_making_may_refer_to_stay_until_it_is_made(
    storage: Storage,
) -> None:
    bases = SnapshotStore(storage)
    old = made(bases, storage, 100, "a")
    (shared,) = old.tables[0].files
    name = snapshot_id(200, "b")
    assert bases.begin(name, PendingSnapshot("base", (old.id,))) == [old.id]
    bases.forget(old.id)
    assert exists(storage, shared)
    bases.publish(base_of(200, "b", file_of(storage, name)))
    bases.sweep()
    assert not exists(storage, shared)


def test_files_of_a_forgotten_base_may_be_referred_to_by_way_of_one_that_has_them(
    storage: Storage,
) -> None:
    bases = SnapshotStore(storage)
    old = made(bases, storage, 100, "a")
    (shared,) = old.tables[0].files
    young = made(bases, storage, 200, "b", shared)
    bases.forget(old.id)
    assert bases.begin(snapshot_id(300, "c"), PendingSnapshot("base", (old.id, young.id))) == [
        young.id
    ]
    bases.forget(young.id)
    assert exists(storage, shared)
    bases.publish(base_of(300, "c", shared))
    bases.sweep()
    assert exists(storage, shared)


def test_who_goes_on_with_a_base_still_has_the_files_that_it_was_to_refer_to(
    storage: Storage,
) -> None:
    bases = SnapshotStore(storage)
    old = made(bases, storage, 100, "a")
    (shared,) = old.tables[0].files
    name = snapshot_id(200, "b")
    bases.begin(name, PendingSnapshot("base", (old.id,)))
    bases.forget(old.id)
    assert bases.begin(name, PendingSnapshot("base", (old.id,))) == [old.id]
    young = bases.publish(base_of(200, "b", shared))
    bases.sweep()
    assert bases.content(young.tables[0].files[0]) == ROW


def test_a_base_that_was_forgotten_before_is_not_referred_to(storage: Storage) -> None:
    bases = SnapshotStore(storage)
    old = made(bases, storage, 100, "a")
    bases.forget(old.id)
    assert bases.begin(snapshot_id(200, "b"), PendingSnapshot("base", (old.id,))) == []


def test_who_wakes_up_can_not_publish_a_base_that_was_forgotten(storage: Storage) -> None:
    bases = SnapshotStore(storage)
    name = snapshot_id(400, "a1")
    bases.begin(name, PendingSnapshot("base"))
    file = file_of(storage, name)
    bases.forget(name)
    assert not exists(storage, file)
    with pytest.raises(RelayError, match="forgotten while it was being made"):
        bases.publish(base_of(400, "a1", file))
    with pytest.raises(RelayError, match="forgotten while it was being made"):
        bases.begin(name, PendingSnapshot("base"))
    assert bases.all() == []


def test_what_came_after_a_base_was_forgotten_goes_with_the_next_sweep(storage: Storage) -> None:
    bases = SnapshotStore(storage)
    name = snapshot_id(400, "a1")
    bases.begin(name, PendingSnapshot("base"))
    bases.forget(name)
    late = file_of(storage, name)
    bases.sweep()
    assert not exists(storage, late)


def test_nothing_goes_of_a_base_whose_manifest_is_missing(storage: Storage) -> None:
    bases = SnapshotStore(storage)
    base = made(bases, storage, 400, "a1")
    manifest = storage.read(base.path)
    storage.remove(base.path)
    bases.sweep()
    assert bases.all() == []
    storage.create(base.path, manifest)
    assert bases.all() == [base]
    assert exists(storage, base.tables[0].files[0])


def test_a_damaged_manifest_is_named_and_nothing_is_removed_meanwhile(storage: Storage) -> None:
    bases = SnapshotStore(storage)
    old, other = made(bases, storage, 100, "a"), made(bases, storage, 200, "b")
    text = storage.read(other.path)
    storage.replace(other.path, text.replace(b"orders", b"others", 1))
    for attempt in (bases.all, bases.sweep, lambda: bases.forget(old.id)):
        with pytest.raises(RelayCorruptError, match=f"{other.path}.*checksum"):
            attempt()
    assert exists(storage, old.tables[0].files[0])


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_file_is_named_with_the_way_out(storage: Storage, damage: str) -> None:
    bases = SnapshotStore(storage)
    base = made(bases, storage, 100, "a")
    (file,) = base.tables[0].files
    content = {"flip": b"X" + ROW[1:], "cut": ROW[:-1], "gone": b""}[damage]
    storage.remove(file.path) if damage == "gone" else storage.replace(file.path, content)
    with pytest.raises(RelayCorruptError, match=f"{file.path}.*sluice base forget"):
        bases.content(file)
