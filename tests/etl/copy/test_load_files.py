"""Loads arrive as they were written, or not at all, and leave nothing behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.etl.copy.bootstrap import BootstrapPlanner
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.staged_loads import FOLDER, read_file, remove_files, write_files
from sluice.etl.copy.worker import LOAD_SCHEMA, make_loads
from sluice.relay.aligned_chunks import LoadFile
from sluice.relay.storage import LocalStorage, open_storage
from tests.etl.copy import small_story
from tests.etl.copy.copying import settings_of
from tests.etl.mariadb_fixture import MariaDBServer

PAYLOADS = [b"1\ta\n2\tb\n", b"", bytes(range(256)) * 40]


def loads() -> Iterator[pa.RecordBatch]:
    for number, payload in enumerate(PAYLOADS):
        yield pa.record_batch(
            [
                pa.array(['{"columns": ["a"]}']),
                pa.array([number]),
                pa.array([0]),
                pa.array([payload], pa.binary()),
            ],
            schema=LOAD_SCHEMA,
        )


def written(storage: LocalStorage) -> list[LoadFile]:
    found = write_files(storage, "one", loads())
    return [LoadFile(**json.loads(text)) for text in found.column(0).to_pylist()]


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    opened = open_storage(tmp_path.as_uri())
    assert isinstance(opened, LocalStorage)
    return opened


def test_loads_come_back_in_their_order_as_they_were(storage: LocalStorage) -> None:
    batches = [read_file(storage, load) for load in written(storage)]
    assert [batch.schema for batch in batches] == [LOAD_SCHEMA] * 3
    assert [batch.column("payload")[0].as_py() for batch in batches] == PAYLOADS
    assert [batch.column("rows")[0].as_py() for batch in batches] == [0, 1, 2]


@pytest.mark.parametrize(
    "content", [None, b"1\ta\n2\tc\n", b"1\ta\n"], ids=["gone", "another", "cut off"]
)
def test_a_file_that_isnt_what_was_written_is_read_again_by_another_job(
    storage: LocalStorage, content: bytes | None
) -> None:
    first = written(storage)[0]
    storage.remove(first.path)
    if content is not None:
        storage.create(first.path, content)
    with pytest.raises(CopyError, match="isn't what a worker wrote") as caught:
        read_file(storage, first)
    assert caught.value.transient


def test_what_is_left_is_removed_by_its_name(storage: LocalStorage) -> None:
    written(storage)
    list(write_files(storage, "other", loads()))
    remove_files(storage, "one")
    assert len(storage.names(FOLDER)) == 3
    remove_files(storage)
    assert storage.names(FOLDER) == []


def test_what_a_killed_process_left_is_gone_once_the_next_one_has_the_downstream(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    source = small_story.open_source(small_story.write_dump(tmp_path / "dump"))
    settings = settings_of(mariadb, tmp_path)
    left = open_storage(settings.relay.url)
    list(write_files(left, "left", loads()))
    made = BootstrapPlanner(settings, source, small_story.definitions(), 7)
    made.run(lambda chunk, table: make_loads(source.spec(), chunk, table))
    assert left.names(FOLDER) == []
    small_story.check(mariadb)
