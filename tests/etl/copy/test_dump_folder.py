"""What lies in a Dumpling folder is known by its names; what isn't known stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.source import SourceChunk
from sluice.tidb.schema import Column, Table
from tests.etl.copy.dump_writer import POSITION, metadata, write


def test_names_positions_and_gaps(tmp_path: Path) -> None:
    names = [
        "d-schema-create.sql",
        "d.t-schema.sql",
        "d.t.0000000000000.sql",
        "d.t.0000000070000.sql",
        "d%2Ex.a%2Fb.000000003.sql",
        "d.empty-schema.sql.gz",
        "d.v-schema.sql",
        "d.v-schema-view.sql",
        "d.s-schema-sequence.sql",
        "notes.txt",
    ]
    source = DumplingFolder.open(write(tmp_path, dict.fromkeys(names, b"x")))
    assert source.position == POSITION
    assert [table.full_name for table in source.tables()] == ["d.empty", "d.t", "`d.x`.a/b"]
    assert source.listing.views == {("d", "v")} and source.listing.sequences == {("d", "s")}
    chunks = source.chunks(Table(1, 1, "d", "t", (Column(1, "a", 0, 3),)))
    assert [chunk.place["file"] for chunk in chunks] == names[2:4]
    assert [SourceChunk.from_json(chunk.to_json()) for chunk in chunks] == chunks


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"d.t.sql": b""}, "d.t.sql holds can't be inferred"),
        ({"d.t.0.parquet": b""}, "parquet"),
        ({"d.t.0.sql": b"x", "d.t.0.sql.gz": b"x"}, "d.t are there twice"),
        ({"d.t.0.sql": b"x", "d.t.1.csv": b"x"}, "d.t are there twice"),
        ({"metadata": b"Started dump at: 2026\n"}, "no position, or no end"),
        ({"metadata": metadata().replace(b"Finished", b"")}, "no position, or no end"),
        ({"metadata": metadata().replace(b"tidb-binlog", b"mysql-bin.01")}, "is no TSO of TiDB"),
        ({"metadata": metadata(7)}, "is no TSO of TiDB"),
    ],
)
def test_a_folder_that_is_no_whole_dump_is_refused(
    tmp_path: Path, files: dict[str, bytes], said: str
) -> None:
    with pytest.raises(CopyError, match=said):
        DumplingFolder.open(write(tmp_path, files))


def test_a_dump_that_was_not_finished_is_refused(tmp_path: Path) -> None:
    url = write(tmp_path, {"metadata.partial": b"", "d.t.0.sql": b""})
    (tmp_path / "metadata").unlink()
    with pytest.raises(CopyError, match="Dumpling did not finish"):
        DumplingFolder.open(url)
    (tmp_path / "metadata.partial").unlink()
    with pytest.raises(CopyError, match="no Dumpling folder"):
        DumplingFolder.open(url)


def test_a_schema_file_of_another_table_stops(tmp_path: Path) -> None:
    made = Table(1, 1, "d", "t", (Column(1, "a", 0, 3), Column(2, "b", 1, 0xFC, charset="binary")))
    text = (
        b"/*!40101 SET NAMES binary*/;\nCREATE TABLE `t` (\n  `a` int(11) NOT NULL,\n  `b` blob"
        b" DEFAULT NULL\n);\n"
    )
    DumplingFolder.open(write(tmp_path, {"d.t-schema.sql": text})).check_schema(made)
    for other in (
        text.replace(b"`a`", b"`x`"),
        text.replace(b"blob", b"text"),
        text.replace(b"  `b` blob DEFAULT NULL\n", b""),
    ):
        with pytest.raises(CopyError, match=r"d.t-schema.sql: d.t is another table there"):
            DumplingFolder.open(write(tmp_path, {"d.t-schema.sql": other})).check_schema(made)


def test_what_is_no_folder_of_a_dump_is_refused_with_what_to_give(tmp_path):
    file = tmp_path / "metadata"
    file.write_text("x")
    with pytest.raises(CopyError, match="is a file: give the folder that Dumpling wrote"):
        DumplingFolder.open(str(file))
    with pytest.raises(CopyError, match="no such folder, or no files in it"):
        DumplingFolder.open(str(tmp_path / "elsewhere"))
