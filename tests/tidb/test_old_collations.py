"""Clusters that were bootstrapped without new collations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from sluice.tidb.codec.memcomparable import encode_bytes
from sluice.tidb.history import SchemaHistory
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.old_collations import binary_collation, is_binary, shown_by_row
from sluice.tidb.rows import RowDecodeError, decode_inserts
from sluice.tidb.schema import Column, Index, Table
from sluice.tidb.tikv.meta import read_new_collations


class Rows:
    """Rows of a table in place of TiKV: (handle, value)."""

    def __init__(self, *rows: tuple[bytes, bytes]) -> None:
        self._rows = rows

    def scan(self, start: bytes, end: bytes, ts: int) -> Iterator[tuple[bytes, bytes]]:
        return iter([(start + handle, value) for handle, value in self._rows])


_COMMENT = b"If the new collations are enabled. Do not edit it."


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            [
                (b"\x80" + bytes(7), b"..bootstrappedTrueBootstrap flag"),
                (b"\x80" + bytes(6) + b"\x01", b"..new_collation_enabledFalse" + _COMMENT),
            ],
            False,
        ),
        ([(b"\x80" + bytes(7), b"..new_collation_enabledTrue" + _COMMENT)], True),
        (
            [
                (b"\x01" + encode_bytes(b"new_collation_enabled"), b"..False" + _COMMENT),
                (b"\x01" + encode_bytes(b"x"), b"True"),
            ],
            False,
        ),
        ([(b"\x01" + encode_bytes(b"new_collation_enabled"), b"..True" + _COMMENT)], True),
        # from before TiDB 4.0
        ([(b"\x80" + bytes(7), b"..bootstrappedTrueBootstrap flag")], False),
        ([], None),
    ],
)
def test_the_row_of_mysql_tidb_says_so_clustered_or_not(
    rows: list[tuple[bytes, bytes]], expected: bool | None
) -> None:
    tikv: Any = Rows(*rows)
    assert read_new_collations(tikv, 21, 1) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("utf8mb4_general_ci", "utf8mb4_nopad_bin"),
        ("utf8mb4_bin", "utf8mb4_nopad_bin"),
        ("utf8_unicode_ci", "utf8mb4_nopad_bin"),
        ("utf8", "utf8mb4_nopad_bin"),
        ("latin1_bin", "latin1_nopad_bin"),
        ("gbk_chinese_ci", "gbk_nopad_bin"),
        ("binary", "binary"),
        ("", ""),
    ],
)
def test_every_collation_but_binary_becomes_one_of_bytes_without_padding(
    name: str, expected: str
) -> None:
    assert binary_collation(name) == expected


def test_tables_of_before_and_after_it_is_known_compare_bytes() -> None:
    column = {
        "id": 1,
        "name": {"O": "a"},
        "offset": 0,
        "state": 5,
        "type": {"Tp": 15, "Charset": "utf8", "Collate": "utf8_general_ci"},
    }

    def create(number: int) -> DdlHistoryJob:
        info = {
            "id": number,
            "name": {"O": f"t{number}"},
            "cols": [column],
            "charset": "utf8",
            "collate": "utf8_bin",
            "state": 5,
        }
        raw = {
            "id": number,
            "type": 3,
            "state": 6,
            "schema_id": 1,
            "table_id": number,
            "binlog": {"SchemaVersion": number, "TableInfo": info},
        }
        return DdlHistoryJob.from_json(raw)

    history = SchemaHistory()
    history.apply(create(5))
    assert not is_binary(history.tables[5])
    history.use_old_collations()
    effect = history.apply(create(6))
    for table in (history.tables[5], history.tables[6], effect.tables[6]):
        assert table is not None
        assert is_binary(table)
        assert (table.columns[0].charset, table.columns[0].collate, table.collate) == (
            "utf8mb4",
            "utf8mb4_nopad_bin",
            "utf8mb4_nopad_bin",
        )


def clustered(kind: int, collate: str, version: int = 1, length: int = -1) -> Table:
    """A table with a clustered key of one text column, and another column."""
    columns = tuple(
        Column(i, name, i - 1, tp, charset="utf8mb4", collate=c, state=5)
        for i, name, tp, c in ((1, "k", kind, collate), (2, "v", 15, "utf8mb4_bin"))
    )
    index = Index(1, "PRIMARY", (("k", 0, length),), unique=True, primary=True)
    return Table(
        9, 1, "d", "t", columns, (index,), is_common_handle=True, common_handle_version=version
    )


# handle "A", {1: "A", 2: "B"}
HELD = bytes.fromhex("0202410802020241") + bytes.fromhex("0804020242")
LACKED = bytes.fromhex("020241") + bytes.fromhex("0804020242")  # handle "A", {2: "B"}


@pytest.mark.parametrize(
    ("table", "held", "lacked"),
    [
        (clustered(15, "utf8mb4_general_ci"), True, False), (clustered(254, "utf8mb4_unicode_ci"), True, False), (clustered(15, "utf8mb4_bin"), True, False),  # noqa: E501
        # noted as a cluster without new collations
        (clustered(15, "utf8mb4_nopad_bin"), True, False),
        (clustered(254, "utf8mb4_bin"), None, None), (clustered(15, "utf8mb4_0900_bin"), None, None), (clustered(15, "utf8mb4_bin", version=0), None, None),  # noqa: E501
        (clustered(15, "utf8mb4_general_ci", length=10), None, None),  # the row has it in any case
    ],
)  # fmt: skip
def test_a_row_of_a_clustered_text_key_shows_whether_collations_mean_anything(
    table: Table, held: bool | None, lacked: bool | None
) -> None:
    assert (shown_by_row(table, HELD), shown_by_row(table, LACKED)) == (held, lacked)


@pytest.mark.parametrize(
    ("table", "row", "says"),
    [
        (
            clustered(15, "utf8mb4_general_ci"),
            LACKED,
            r'table d\.t \(id 9\), row 0 .*no new collations.*new-collations = "false"',
        ),
        (
            clustered(15, "utf8mb4_nopad_bin"),
            HELD,
            (
                r"has new collations.*landed as one without them: set \[upstream\] new-collations ="
                r' "true" and land again'
            ),
        ),
    ],
)
@pytest.mark.parametrize("count", [1, 100])
def test_rows_of_the_other_kind_of_cluster_are_not_misread(
    table: Table, row: bytes, says: str, count: int
) -> None:
    other = LACKED if row is HELD else HELD
    assert decode_inserts(table, pa.array([other] * count, pa.large_binary())).num_rows == count
    with pytest.raises(RowDecodeError, match=says):
        decode_inserts(table, pa.array([row] * count, pa.large_binary()))
