"""A dump in an object store is read as one in a folder is."""

from __future__ import annotations

import pytest

from sluice.etl.copy.dumpling import DumplingFolder, DumplingOptions
from sluice.etl.copy.errors import CopyError
from sluice.relay.storage import open_storage
from sluice.tidb.schema import Table
from tests.etl.copy.copying import RECORDING, definitions
from tests.object_store.s3_server import S3Server


def rows(url: str, made: Table, chunk_bytes: int) -> list[dict[str, object]]:
    source = DumplingFolder.open(url, DumplingOptions(chunk_bytes=chunk_bytes))
    again = DumplingFolder.from_spec(source.spec())
    return [
        row
        for chunk in source.chunks(made)
        for batch in again.read(chunk, made)
        for row in batch.to_pylist()
    ]


def test_a_dump_in_an_object_store_is_read_whole_and_in_ranges(s3_server: S3Server) -> None:
    url = s3_server.url("dump")
    folder = RECORDING / "dump-csv-plain"
    storage = open_storage(url)
    for file in folder.iterdir():
        storage.create(file.name, file.read_bytes())
    source = DumplingFolder.open(url)
    made = next(t for t in definitions(source.position).tables if t.full_name == "bank.ledger")
    assert [t.full_name for t in source.tables()] == [
        t.full_name for t in DumplingFolder.open(str(folder)).tables()
    ]
    expected = rows(str(folder), made, 1 << 20)
    assert len(expected) == 2_215
    assert rows(url, made, 1 << 20) == rows(url, made, 20_000) == expected


def test_credentials_in_a_dumps_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(CopyError) as caught:
        DumplingFolder.open("s3://AKIA:s3cret@bucket/dump")
    assert "dump URL" in str(caught.value) and "s3cret" not in str(caught.value)
