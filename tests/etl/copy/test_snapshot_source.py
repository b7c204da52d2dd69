"""Rows of a snapshot: what is written is read back, value by value, and damage is named."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.etl.copy import snapshot_files as snapshot_files
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.snapshot_files import read_file, rows_schema, write_files
from sluice.etl.copy.snapshot_source import SnapshotSource
from sluice.etl.copy.source import SourceChunk
from sluice.etl.copy.sources import open_source
from sluice.relay.archive import (
    ArchiveSnapshot,
    PendingSnapshot,
    SnapshotStore,
    SnapshotTable,
    snapshot_id,
)
from sluice.relay.errors import RelayCorruptError
from sluice.relay.storage import Storage, open_storage
from sluice.tidb.codec.columnar import from_values
from sluice.tidb.schema import Table
from tests.etl.copy.copying import RECORDING, definitions
from tests.etl.story import table

LETTERS = table(7, "letters", "id int", "v text", primary="id")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(f"file://{tmp_path}/archive")


def letters(first: int, count: int) -> pa.RecordBatch:
    schema = rows_schema(LETTERS)
    texts = [
        None if n % 7 == 0 else b"\xff\xfe" if n % 5 == 0 else f"row {n}" * 20 for n in range(count)
    ]
    ids = pa.array(range(first, first + count), schema[0].type)
    return pa.RecordBatch.from_arrays([ids, from_values(texts, schema[1].type)], schema=schema)


def snapshot_of_dump(
    storage: Storage, dump: DumplingFolder, known: SourceSchema
) -> ArchiveSnapshot:
    """As every snapshot is made: files, then the manifest."""
    name = snapshot_id(dump.position, "test")
    snapshots = SnapshotStore(storage)
    snapshots.begin(name, PendingSnapshot("test"))
    held = {estimate.full_name for estimate in dump.tables()}

    def rows_of(one: Table) -> Iterator[pa.RecordBatch]:
        for chunk in dump.chunks(one):
            yield from dump.read(chunk, one)

    made = [
        SnapshotTable(
            one.schema_name,
            one.name,
            one.to_json(),
            tuple(write_files(storage, f"snapshots/{name}/{one.id}", one, rows_of(one)))
            if one.full_name in held
            else (),
        )
        for one in known.tables
    ]
    schemas = tuple(schema.to_json() for schema in known.schemas)
    snapshot = ArchiveSnapshot(
        name,
        known.ts,
        known.schema_version,
        7,
        time.time_ns() // 1_000_000,
        "test",
        schemas,
        tuple(made),
    )
    return snapshots.publish(snapshot)


def test_a_snapshot_is_the_source_that_it_was_made_from_with_definitions_and_values(
    storage: Storage,
) -> None:
    dump = DumplingFolder.open(str(RECORDING / "dump-sql"))
    known = definitions(dump.position).of_users()
    snapshot = snapshot_of_dump(storage, dump, known)
    source = open_source(SnapshotSource.from_snapshot(storage.url, snapshot).spec())
    assert isinstance(source, SnapshotSource)
    assert source.position == dump.position
    assert source.definitions() == known
    assert [(one.schema, one.table) for one in source.tables()] == [
        (one.schema, one.table) for one in dump.tables()
    ]
    rows = 0
    for one in known.tables:
        if not one.is_base_table or not dump.chunks(one):
            continue
        source.check_schema(one)
        expected = pa.Table.from_batches(
            [batch for chunk in dump.chunks(one) for batch in dump.read(chunk, one)],
            rows_schema(one, ()),
        )
        found = pa.Table.from_batches(
            [
                batch
                for chunk in source.chunks(one)
                for batch in source.read(SourceChunk.from_json(chunk.to_json()), one)
            ],
            rows_schema(one, ()),
        )  # fmt: skip
        assert raw(found) == raw(expected), one.full_name
        rows += found.num_rows
    assert rows == snapshot.rows > 7_900


def raw(rows: pa.Table) -> list[list[object]]:
    """Values, text as its bytes: it need not be utf-8."""
    return [
        (
            column.cast(pa.large_binary()) if pa.types.is_large_string(column.type) else column
        ).to_pylist()
        for column in rows.columns
    ]


def test_many_rows_become_several_files_each_with_its_own_counts(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_files, "FILE_ROW_BYTES", 60_000)
    monkeypatch.setattr(snapshot_files, "GROUP_ROW_BYTES", 20_000)
    batches = [letters(n * 100, 100) for n in range(40)]
    files = write_files(storage, "snapshots/x/7", LETTERS, iter(batches))
    assert len(files) >= 5
    found = pa.Table.from_batches(
        [batch for file in files for batch in read_file(storage, file, LETTERS)]
    )
    assert raw(found) == raw(pa.Table.from_batches(batches))
    assert sum(file.rows for file in files) == 4_000
    for file in files:
        assert sum(batch.num_rows for batch in read_file(storage, file, LETTERS)) == file.rows
        assert file.bytes == len(storage.read(file.path))


def test_no_rows_are_no_file(storage: Storage) -> None:
    assert write_files(storage, "snapshots/x/7", LETTERS, iter([letters(0, 0)])) == []


@pytest.mark.parametrize("place", [0, 0.3, 0.9, -1])
def test_a_flipped_byte_anywhere_is_an_error_that_names_the_file(
    storage: Storage, place: float
) -> None:
    (file,) = write_files(storage, "snapshots/x/7", LETTERS, [letters(0, 500)])
    content = bytearray(storage.read(file.path))
    content[int(place * len(content)) if place > 0 else int(place)] ^= 1
    storage.replace(file.path, bytes(content))
    with pytest.raises(RelayCorruptError, match=file.path):
        list(read_file(storage, file, LETTERS))


def test_rows_of_another_table_are_refused(storage: Storage) -> None:
    (file,) = write_files(storage, "snapshots/x/7", LETTERS, [letters(0, 5)])
    with pytest.raises(RelayCorruptError, match="it has the columns"):
        list(read_file(storage, file, table(7, "letters", "id int", "v int", primary="id")))


def test_a_table_that_became_another_one_is_refused(storage: Storage) -> None:
    name = snapshot_id(9, "a")
    SnapshotStore(storage).begin(name, PendingSnapshot("test"))
    files = tuple(write_files(storage, f"snapshots/{name}/7", LETTERS, [letters(0, 5)]))
    held = SnapshotTable(LETTERS.schema_name, LETTERS.name, LETTERS.to_json(), files)
    source = SnapshotSource.from_snapshot(
        storage.url,
        SnapshotStore(storage).publish(ArchiveSnapshot(name, 9, 1, 7, 0, "test", (), (held,))),
    )
    source.check_schema(LETTERS)
    with pytest.raises(CopyError, match="of another cluster"):
        source.check_schema(table(7, "letters", "id int", "w text", primary="id"))
