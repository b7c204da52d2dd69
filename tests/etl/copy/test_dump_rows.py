"""What Dumpling writes is read back as it was, and what is damaged stops."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.etl.changes.masks import Mask
from sluice.etl.copy import _sql_rows
from sluice.etl.copy._dump_file import PIECE_BYTES, read_decompressed
from sluice.etl.copy._fields import positions_outside_quotes
from sluice.etl.copy._sql_rows import SqlRows
from sluice.etl.copy.dumpling import CsvFormat, DumplingFolder, DumplingOptions
from sluice.etl.copy.errors import CopyError, DumpError
from sluice.relay.storage import open_storage
from sluice.tidb.schema import Column, Table
from tests.etl.copy.dump_writer import Way, compressed, content, write
from tests.examples import examples

KINDS = {
    "int": (3, "binary", {}),
    "big": (8, "binary", {"flag": 32}),
    "dec": (0xF6, "binary", {"flen": 20, "decimal": 4}),
    "dbl": (5, "binary", {}),
    "txt": (15, "utf8mb4", {"flen": 255}),
    "raw": (0xFC, "binary", {}),
    "bit": (16, "binary", {"flen": 17}),
    "yr": (13, "binary", {}),
    "js": (0xF5, "binary", {}),
    "ts": (7, "binary", {"decimal": 3}),
    "tm": (11, "binary", {}),
    "en": (0xF7, "utf8mb4", {"elems": ("a,b", "c'd")}),
}
NASTY = st.text(st.sampled_from("a\\'\",|+\n\r\t\0\x1aN();xé😀 "), max_size=12).map(str.encode)
VALUES: dict[str, st.SearchStrategy[bytes]] = {
    "int": st.integers(-(2**63), 2**63 - 1).map(lambda v: str(v).encode()),
    "big": st.integers(0, 2**64 - 1).map(lambda v: str(v).encode()),
    "dec": st.decimals(-(10**15), 10**15, places=4).map(lambda v: f"{v:.4f}".encode()),
    "dbl": st.floats(allow_nan=False, allow_infinity=False).map(lambda v: repr(v).encode()),
    "txt": NASTY | st.binary(max_size=6),
    "raw": st.binary(max_size=9),
    "bit": st.integers(0, 2**17 - 1).map(lambda v: struct.pack(">I", v)[1:]),
    "yr": st.sampled_from([b"0000", b"1901", b"2155"]),
    "js": st.sampled_from([b"{}", b'{"a": "it\'s \\"q\\" \\\\ \\n"}', b"null", '["é"]'.encode()]),
    "ts": st.sampled_from([b"0000-00-00 00:00:00.000", b"2024-02-29 12:00:00.500"]),
    "tm": st.sampled_from([b"-838:59:59", b"00:00:00"]),
    "en": st.sampled_from([b"a,b", b"c'd", b""]),
}


def table(kinds: list[str]) -> Table:
    columns = []
    for n, kind in enumerate(kinds):
        tp, charset, more = KINDS[kind]
        columns.append(
            Column(n + 1, f'c`{n}"' if n % 2 else f"c{n}", n, tp, charset=charset, **more)
        )
    return Table(1, 1, "d", "t", tuple(columns))


def expected(kind: str, value: bytes | None) -> Any:
    if value is None:
        return None
    match kind:
        case "int" | "big" | "yr":
            return int(value)
        case "dbl":
            return float(value)
        case "bit":
            return int.from_bytes(value, "big")
    return value


def read(url: str, made: Table, options: DumplingOptions | None = None) -> list[tuple[Any, ...]]:
    source = DumplingFolder.open(url, options)
    rows: list[tuple[Any, ...]] = []
    for chunk in source.chunks(made):
        again = DumplingFolder.from_spec(source.spec())
        for batch in again.read(chunk, made):
            columns = [
                (
                    column.cast("large_binary").to_pylist()
                    if column.type == "large_string"
                    else column.to_pylist()
                )
                for column in batch.columns
            ]
            rows += zip(*columns, strict=True)
        assert again.stats.singly == 0
    return rows


def file_of(made: Table, kinds: list[str], rows: list[tuple[bytes | None, ...]], way: Way) -> bytes:
    columns = [(c.name, c.kind, c.unsigned) for c in made.columns]
    return content("t", columns, rows, way)


WAYS = [
    Way(),
    Way(escapes=False),
    Way("csv"),
    Way("csv", escapes=False),
    Way("csv", separator=b"|+|", delimiter=b""),
    Way("csv", separator=b"\t", delimiter=b"'", terminator=b"\n"),
    Way("csv", separator=b"aa", delimiter=b"", terminator=b"\n"),
    Way("csv", header=False),
    Way("csv", null=b""),
    Way("csv", escapes=False, null=b""),
]


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("way", WAYS, ids=str)
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_what_dumpling_writes_is_read_back(way: Way, data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6))
    row = st.tuples(*(st.none() | VALUES[kind] for kind in kinds))
    # Dumpling writes no empty file
    rows = data.draw(st.lists(row, min_size=int(not way.header), max_size=9))
    made = table(kinds)
    with tempfile.TemporaryDirectory() as folder:
        url = write(Path(folder), {f"d.t.000000000.{way.form}": file_of(made, kinds, rows, way)})
        form = (
            CsvFormat(null=way.null.decode())
            if way.header
            else CsvFormat(",", '"', "\r\n", header=False)
        )
        if len(kinds) == 1 and not way.delimiter:
            form = CsvFormat(separator=way.separator.decode())  # no header tells
        options = DumplingOptions(
            form, way.escapes, chunk_bytes=data.draw(st.sampled_from([40, 1 << 20]))
        )
        assert read(url, made, options) == [tuple(map(expected, kinds, values)) for values in rows]


@pytest.mark.quick_cases("[sql-]", "[csv-.zst]")
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".snappy"])
@pytest.mark.parametrize("way", [Way(), Way("csv")], ids=["sql", "csv"])
def test_a_file_that_is_cut_off_stops(tmp_path: Path, suffix: str, way: Way) -> None:
    kinds = ["int", "txt"]
    made = table(kinds)
    whole = compressed(
        file_of(made, kinds, [(b"%d" % n, b"text %d" % n) for n in range(500)], way), suffix
    )
    name = f"d.t.000000000.{way.form}{suffix}"
    assert len(read(write(tmp_path, {name: whole}), made)) == 500
    for size in (len(whole) - 1, len(whole) - 3, len(whole) // 2, 30):
        with pytest.raises(DumpError, match=name):
            read(write(tmp_path, {name: whole[:size]}), made)


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".snappy"])
def test_a_compressed_file_with_a_wrong_byte_stops(tmp_path: Path, suffix: str) -> None:
    kinds = ["int", "txt"]
    made = table(kinds)
    whole = bytearray(
        compressed(file_of(made, kinds, [(b"%d" % n, b"x") for n in range(500)], Way()), suffix)
    )
    whole[len(whole) // 2] ^= 0xFF
    with pytest.raises(DumpError, match=rf"d.t.0.sql{suffix}"):
        read(write(tmp_path, {f"d.t.0.sql{suffix}": bytes(whole)}), made)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_file_that_expands_a_thousandfold_comes_in_pieces(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"bomb{suffix}").write_bytes(compressed(bytes(64 << 20), suffix))
    sizes = [
        len(piece) for piece in read_decompressed(open_storage(str(tmp_path)), f"bomb{suffix}")
    ]
    assert sum(sizes) == 64 << 20 and max(sizes) <= PIECE_BYTES


def test_a_chunk_of_snappy_that_claims_gigabytes_stops(tmp_path: Path) -> None:
    claim = b"\0\0\0\0" + b"\xff\xff\xff\xff\x7f" + b"x"
    (tmp_path / "bomb.snappy").write_bytes(
        b"\xff\x06\0\0sNaPpY\0" + len(claim).to_bytes(3, "little") + claim
    )
    with pytest.raises(DumpError, match="65536 are allowed"):
        list(read_decompressed(open_storage(str(tmp_path)), "bomb.snappy"))


def test_a_string_full_of_what_ends_a_statement_is_not_looked_at_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = 0

    def counted(data: Any, *args: Any, **more: Any) -> Any:
        nonlocal looked
        looked += len(data)
        return positions_outside_quotes(data, *args, **more)

    monkeypatch.setattr(_sql_rows, "positions_outside_quotes", counted)
    text = INSERT + b"(1,'" + b");\n" * 5_000 + b"');\n" + INSERT + b"(2,'b');\n"
    rows = SqlRows("f", ["a", "b"])
    found = [fields for _, fields, _ in rows.feed(text)]
    rows.finish()
    assert [len(fields.start) for fields in found] == [1, 1]
    assert looked < 8 * len(text)


INSERT = b"INSERT INTO `t` VALUES\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (INSERT + b"(1,'a'),\n(2);\n", "byte 32: the row has 1 values, the table 2 columns"),
        (INSERT + b"(1,'a','b');\n", "the row has 3 values"),
        (INSERT + b"(1,'a'),\n(2,now());\n", "byte 35: d.t.c1: a text without quotes"),
        (INSERT + b"(1,'a'),  (2,now());\n", "no value here"),
        (INSERT + b"(1,'a'),\n(2x,'b');\n", "byte"),
        (
            INSERT + b"(99999999999999999999,'a');\n",
            "byte 24: d.t.c0: it is no int: '99999999999999999999'",
        ),
        (INSERT + b"(1,'a''b');\n", "escape-backslash=false"),
        (INSERT + b"(1,'C:\\dir');\n", "escape-backslash=false"),
        (INSERT + b"(1,'a\"b');\n", "escape-backslash=false"),
        (INSERT + b"(1,x'0g');\n", "byte"),
        (b"DROP TABLE t;\n", "INSERT INTO is expected"),
        (b"INSERT INTO `t` (`c0`,`other`) VALUES\n(1,'a');\n", "rows with the columns c0, other"),
    ],
)
def test_what_dumpling_would_not_write_stops_with_its_place(
    tmp_path: Path, text: bytes, said: str
) -> None:
    kinds = ["int", "txt"]
    made = table(kinds)
    made = Table(
        1, 1, "d", "t", (made.columns[0], Column(2, "c1", 1, 15, charset="utf8mb4", flen=9))
    )
    url = write(tmp_path, {"d.t.000000000.sql": text})
    with pytest.raises(DumpError, match=r"d.t.000000000.sql") as caught:
        read(url, made)
    assert said in str(caught.value)


SECRET = "4711-0815"
"""What stands in a masked column, and in no message."""


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("sql", INSERT + f"(1,2),\n('{SECRET}',1,1);\n".encode(), "the row has 3"),
        ("sql", INSERT + f"(1,2),  (now('{SECRET}'),2);\n".encode(), "no value here"),
        ("sql", f"{SECRET}\n".encode(), "INSERT INTO is expected"),
        ("sql", INSERT + f"('{SECRET}x',1);\n".encode(), "it is no decimal"),
        ("csv", f'"c0","c1"\n"{SECRET}"\n'.encode(), "the row has 1 fields"),
        ("csv", f'"{SECRET}","c1"\n'.encode(), "the header doesn't show"),
    ],
)
def test_messages_quote_nothing_of_a_file_with_a_masked_column(
    tmp_path: Path, name: str, text: bytes, place: str
) -> None:
    number = Column(1, "c0", 0, 0xF6, flen=20, decimal=4, mask=Mask("null").to_text())
    made = Table(1, 1, "d", "t", (number, Column(2, "c1", 1, 3)))
    url = write(tmp_path, {f"d.t.000000000.{name}": text})
    with pytest.raises(DumpError) as caught:
        read(url, made)
    assert place in str(caught.value) and "(masked)" in str(caught.value)
    assert SECRET[:4] not in str(caught.value)


def test_rows_in_another_layout_are_read_singly_and_counted(tmp_path: Path) -> None:
    made = table(["int", "txt"])
    url = write(
        tmp_path, {"d.t.0.sql": b"INSERT INTO `t` VALUES (1,'a'), (2,NULL),\n(3,'it\\'s');\n"}
    )
    source = DumplingFolder.open(url)
    rows = [
        r
        for c in source.chunks(made)
        for b in source.read(c, made)
        for r in zip(*(x.to_pylist() for x in b))
    ]
    assert rows == [(1, "a"), (2, None), (3, "it's")]
    assert source.stats.singly == 3


def test_a_row_that_is_longer_than_a_piece_is_read(tmp_path: Path) -> None:
    made = table(["int", "raw"])
    long = bytes(range(256)) * 20_000
    rows = [(b"1", long), (b"2", b""), (b"3", long)]
    url = write(tmp_path, {"d.t.0.sql": file_of(made, ["int", "raw"], rows, Way())})
    assert read(url, made) == [(1, long), (2, b""), (3, long)]


def test_a_csv_row_of_another_width_stops_with_its_place(tmp_path: Path) -> None:
    made = table(["int", "int"])
    text = content("t", [(c.name, "int", False) for c in made.columns], [(b"1", b"2")], Way("csv"))
    url = write(tmp_path, {"d.t.0.csv": text + b"3,4,5\r\n"})
    with pytest.raises(
        DumpError, match=rf"d.t.0.csv, byte {len(text)}: the row has 3 fields, 2 columns"
    ):
        read(url, made)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (CsvFormat(header=False), "header"),
        (CsvFormat(delimiter="##"), "delimiter of several bytes"),
        (CsvFormat(delimiter="", null="NULL"), "can't be distinguished"),
        (CsvFormat(delimiter="", null=""), "can't be distinguished"),
        (CsvFormat(separator=""), "separator"),
        (CsvFormat(separator=";"), "the header doesn't show"),
    ],
)
def test_csv_that_could_be_read_in_two_ways_is_refused(
    tmp_path: Path, form: CsvFormat, said: str
) -> None:
    made = table(["int", "int"])
    url = write(
        tmp_path,
        {"d.t.0.csv": content("t", [("c0", "int", False), ('c`1"', "int", False)], [], Way("csv"))},
    )
    with pytest.raises(CopyError, match=said):
        read(url, made, DumplingOptions(form))


def test_a_file_that_changed_after_it_was_cut_into_chunks_stops(tmp_path: Path) -> None:
    made = table(["int", "txt"])
    text = file_of(made, ["int", "txt"], [(b"%d" % n, b"text") for n in range(200)], Way())
    source = DumplingFolder.open(
        write(tmp_path, {"d.t.0.sql": text}), DumplingOptions(chunk_bytes=500)
    )
    chunks = source.chunks(made)
    assert (
        len(chunks) > 3
        and sum(batch.num_rows for chunk in chunks for batch in source.read(chunk, made)) == 200
    )
    (tmp_path / "d.t.0.sql").write_bytes(text + text)
    with pytest.raises(DumpError, match=r"bytes, \d+ when the copy was planned"):
        list(source.read(chunks[0], made))
    (tmp_path / "d.t.0.sql").unlink()
    with pytest.raises(DumpError, match=r"the file is gone"):
        list(source.read(chunks[0], made))
