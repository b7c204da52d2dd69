"""Rows of a server's answer, cut anywhere, are those that it sent."""

from __future__ import annotations

import random

import pytest

from sluice.etl.changes.formats.mysql_result_stream import result_blocks
from sluice.etl.changes.formats.mysql_rows import ProtocolError, RowPackets
from sluice.etl.settings.sql_login import LoginConnection
from tests.etl.mariadb_fixture import MariaDBServer

END = b"\xfe\0\0\2\0"
MOST = 0xFFFFFF


def value(content: bytes | None) -> bytes:
    if content is None:
        return b"\xfb"
    size = len(content)
    if size < 251:
        return bytes([size]) + content
    mark, width = next((m, w) for m, w in ((0xFC, 2), (0xFD, 3), (0xFE, 8)) if size < 1 << 8 * w)
    return bytes([mark]) + size.to_bytes(width, "little") + content


def packets(payload: bytes) -> bytes:
    """The payload in packets; one that ends with a full packet is followed by an empty one."""
    parts = [payload[at : at + MOST] for at in range(0, len(payload) + 1, MOST)]
    return b"".join(len(part).to_bytes(3, "little") + b"\1" + part for part in parts)


def rows_out_of(stream: bytes, columns: int, cuts: list[int]) -> list[tuple[bytes | None, ...]]:
    found = RowPackets(columns, 1 << 30)
    rows: list[tuple[bytes | None, ...]] = []
    for low, high in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found.feed(stream[low:high])
        while (block := found.take()) is not None:
            rows += zip(*(block.column(n).to_pylist() for n in range(columns)), strict=True)
    assert found.is_over
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_any_sizes_are_found_wherever_the_stream_is_cut(seed: int) -> None:
    rng = random.Random(seed)
    columns = rng.randint(1, 5)
    sizes = [0, 1, 7, 250, 251, 65_535, 65_536]
    rows = [
        tuple(
            None if rng.random() < 0.2 else rng.randbytes(rng.choice(sizes)) for _ in range(columns)
        )
        for _ in range(rng.randint(0, 30))
    ]
    stream = b"".join(packets(b"".join(map(value, row))) for row in rows) + packets(END)
    cuts = sorted(rng.sample(range(1, len(stream)), min(len(stream) - 1, rng.randint(0, 40))))
    assert rows_out_of(stream, columns, cuts) == rows


@pytest.mark.parametrize("size", [MOST - 5, MOST - 4, MOST - 3, MOST, 2 * MOST + 9])
def test_a_row_of_many_megabytes_lies_between_small_ones(size: int) -> None:
    rows = [(b"a", b"1"), (b"x" * size, None), (b"b", b"2")]
    stream = b"".join(packets(b"".join(map(value, row))) for row in rows) + packets(END)
    assert rows_out_of(stream, 2, [10, MOST // 2]) == rows


def test_an_error_in_the_place_of_a_row_ends_the_answer_and_is_kept() -> None:
    found = RowPackets(1, 1 << 30)
    found.feed(packets(value(b"a")) + packets(b"\xff\x15\x05#HY000gone"))
    block = found.take()
    assert block is not None
    assert block.column(0).to_pylist() == [b"a"]
    assert found.is_over
    assert found.error.endswith(b"gone")


@pytest.mark.parametrize("payload", [b"\x01a", b"\x01a\x01b\x01c", b"\x09a"])
def test_a_row_with_other_than_its_columns_is_an_error(payload: bytes) -> None:
    found = RowPackets(2, 1 << 30)
    found.feed(packets(payload))
    with pytest.raises(ProtocolError):
        found.take()


def test_what_a_server_sends_is_what_the_driver_reads(mariadb: MariaDBServer) -> None:
    statement = (
        "SELECT seq, IF(seq % 7 = 0, NULL, REPEAT(CHAR(seq % 256), seq % 300)), seq / 3 FROM"
        " mysql.seq_1_to_100000"
    )
    connection = LoginConnection(
        host="127.0.0.1",
        port=mariadb.port,
        user="root",
        autocommit=None,
        conv={},
        use_unicode=False,
    )
    with connection.cursor() as cursor:
        cursor.execute(statement)
        expected = list(cursor.fetchall())
    found = [
        row
        for block in result_blocks(connection, statement, 60)
        for row in zip(*(block.column(n).to_pylist() for n in range(3)), strict=True)
    ]
    assert found == expected
    connection.close()
