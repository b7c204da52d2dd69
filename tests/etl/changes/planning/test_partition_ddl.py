"""Rows written by sessions that don't know of a partition DDL yet, or know of it before its binlog
comes.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from sluice.etl.apply import run_apply
from sluice.etl.changes.steps import Step, surviving_rows_of
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from sluice.tidb.ddl_actions import Action
from sluice.tidb.partitions import PartitionError, partition_of
from sluice.tidb.schema import Column, Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.partition_history import PartitionHistory, create_statements
from tests.etl.preparing import local_preparer
from tests.examples import examples


@pytest.mark.quick_cases("parallel-True")
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("mode", [pytest.param("atomic", marks=pytest.mark.slow), "parallel"])
@settings(
    max_examples=examples(5),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
# a partition is exchanged and exchanged back within a transaction that writes to the table
@example(5569, 55, [10], 100_000)
@given(
    st.integers(0, 2**32),
    st.integers(5, 60),
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.sampled_from([1, 20, 100_000]),
)
def test_sessions_behind_and_ahead_of_partition_ddl_end_like_the_partitions_upstream(
    mariadb: MariaDBServer,
    mode: str,
    keyed: bool,
    seed: int,
    count: int,
    sizes: list[int],
    max_rows: int,
) -> None:
    history = PartitionHistory(seed, keyed)
    history.grow(count)
    history.settle()
    mariadb.empty()
    with (
        contextlib.closing(mariadb.connect()) as connection,
        tempfile.TemporaryDirectory() as folder,
        connection.cursor() as cursor,
    ):
        for statement in create_statements(keyed):
            cursor.execute(statement)
        last = history.land(f"file://{folder}", sizes).last()
        if last is None:
            return
        config = Settings(
            Upstream("unused"),
            Relay(f"file://{folder}"),
            mariadb.downstream,
            apply=Apply(mode, 3, max_rows),
        )
        run_apply(config, until_ts=last.hi, run_seconds=240, prepare=local_preparer(config))
        for name, expected in history.final.items():
            cursor.execute(f"SELECT p, v FROM d.{name}")
            assert sorted(cursor.fetchall(), key=repr) == expected, name


def test_a_crash_between_the_statement_and_the_rows_that_stay_loses_none(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    history = PartitionHistory(8, keyed=False)
    for _ in range(6):
        history.rows()
    history.ddl(Action.DROP_PARTITION, rows_between=12)
    history.settle()
    url = f"file://{tmp_path}/relay"
    last = history.land(url, [7]).last()
    mariadb.empty()
    crashes = []

    def crash_once(step: Step) -> Iterator[Step]:
        loads = list(surviving_rows_of(step))
        if loads and not crashes:
            crashes.append(step.commit_ts)
            raise SystemExit("killed")
        return iter(loads)

    with (
        mariadb.connect() as connection,
        connection.cursor() as cursor,
        mock.patch("sluice.etl.downstream.sinks.mysql.surviving_rows_of", crash_once),
    ):
        for statement in create_statements(keyed=False):
            cursor.execute(statement)
        config = Settings(Upstream("unused"), Relay(url), mariadb.downstream)
        with pytest.raises(SystemExit):
            run_apply(config, until_ts=last.hi, run_seconds=240, prepare=local_preparer(config))
        run_apply(config, until_ts=last.hi, run_seconds=240, prepare=local_preparer(config))
        assert crashes
        cursor.execute("SELECT p, v FROM d.t")
        assert sorted(cursor.fetchall(), key=repr) == history.final["t"]


def test_columns_and_partitions_are_found_by_tidbs_lower_case() -> None:
    """Python's lower case of a word's last sigma is another letter than TiDB's."""
    greek = Column(1, "ΟΔΟΣ", 0, 8)
    listed = parted(3, [{"in_values": [["1"]]}, {"in_values": [["2"]]}], "", ("οδοσ",), greek)
    assert partition_of(listed, {"ΟΔΟΣ": 2}) == 101
    assert partition_of(parted(2, [{}, {}], "`οδοσ`", (), greek), {"ΟΔΟΣ": 3}) == 101


def parted(
    kind: int, definitions: list[dict], expr: str = "", columns: tuple[str, ...] = (), *cols: Column
) -> Table:
    named = [
        {"id": 100 + n, "name": {"O": f"p{n}", "L": f"p{n}"}, **d}
        for n, d in enumerate(definitions)
    ]
    info = {
        "type": kind,
        "expr": expr,
        "columns": [{"O": c, "L": c} for c in columns],
        "enable": True,
        "num": len(named),
        "definitions": named,
    }
    return Table(1, 1, "d", "t", cols, partition=info)


_A, _D = Column(1, "a", 0, 8), Column(2, "d", 1, 12)
_S, _CI = (
    Column(3, "s", 2, 15, charset="utf8mb4", collate="utf8mb4_bin"),
    Column(4, "c", 3, 15, charset="utf8mb4", collate="utf8mb4_general_ci"),
)
_BOUNDS = [{"less_than": ["10"]}, {"less_than": ["20"]}, {"less_than": ["MAXVALUE"]}]
_CASES = [
    (parted(1, _BOUNDS, "`a`", (), _A), {"a": 9}, 0),
    (parted(1, _BOUNDS, "`a`", (), _A), {"a": 10}, 1),
    (parted(1, _BOUNDS, "`a`", (), _A), {"a": None}, 0),
    (parted(1, _BOUNDS, "`a`", (), _A), {"a": 2**64 - 1}, 2),
    (parted(1, _BOUNDS[:2], "`a`", (), _A), {"a": 20}, None),
    (parted(1, _BOUNDS, "MOD(`a`, 7) * 3 - 1", (), _A), {"a": 5}, 1),
    (parted(1, _BOUNDS, "`a` DIV 2", (), _A), {"a": -3}, 0),
    (
        parted(1, [{"less_than": ["2020"]}, {"less_than": ["2021"]}], "YEAR(`d`)", (), _D),
        {"d": "2020-02-29 23:00:00"},
        1,
    ),
    (
        parted(1, [{"less_than": ["738000"]}, {"less_than": ["738157"]}], "TO_DAYS(`d`)", (), _D),
        {"d": "2021-01-01 00:00:00"},
        1,
    ),
    (
        parted(1, [{"less_than": ["0"]}, {"less_than": ["MAXVALUE"]}], "TO_DAYS(`d`)", (), _D),
        {"d": "0000-00-00 00:00:00"},
        0,
    ),
    (
        parted(
            1,
            [{"less_than": ["1"]}, {"less_than": ["1577836801"]}],
            "UNIX_TIMESTAMP(`t`)",
            (),
            Column(9, "t", 0, 7),
        ),
        {"t": "2020-01-01 00:00:00"},
        1,
    ),
    (
        parted(1, [{"less_than": ["5"]}, {"less_than": ["9"]}], "EXTRACT(MONTH FROM `d`)", (), _D),
        {"d": "2020-05-01 00:00:00"},
        1,
    ),
    (parted(2, [{}] * 4, "`a`", (), _A), {"a": -7}, 3),
    (parted(2, [{}] * 4, "`a`", (), _A), {"a": 2**64 - 3}, 3),
    (parted(2, [{}] * 4, "`a`", (), _A), {"a": None}, 0),
    (
        parted(3, [{"in_values": [["1"], ["NULL"]]}, {"in_values": [["2"]]}], "`a`", (), _A),
        {"a": None},
        0,
    ),
    (parted(3, [{"in_values": [["1"]]}, {"in_values": [["DEFAULT"]]}], "`a`", (), _A), {"a": 7}, 1),
    (parted(3, [{"in_values": [["1"]]}], "`a`", (), _A), {"a": 7}, None),
    (
        parted(1, [{"less_than": ["'eu'"]}, {"less_than": ["'us''s'"]}], "", ("s",), _S),
        {"s": b"us"},
        1,
    ),
    (
        parted(
            1,
            [{"less_than": ["5", "'b'"]}, {"less_than": ["5", "MAXVALUE"]}],
            "",
            ("a", "s"),
            _A,
            _S,
        ),
        {"a": 5, "s": b"b"},
        1,
    ),
    (
        parted(
            1,
            [{"less_than": ["5", "'b'"]}, {"less_than": ["9", "MAXVALUE"]}],
            "",
            ("a", "s"),
            _A,
            _S,
        ),
        {"a": 5, "s": None},
        0,
    ),
    (
        parted(
            1, [{"less_than": ["'2020-01-01'"]}, {"less_than": ["'2021-01-01'"]}], "", ("d",), _D
        ),
        {"d": "2020-01-01 00:00:00"},
        1,
    ),
    (
        parted(
            1, [{"less_than": ['"2020-01-01"']}, {"less_than": ['"2021-01-01"']}], "", ("d",), _D
        ),
        {"d": "2020-06-01"},
        1,
    ),
    (
        parted(1, [{"less_than": ['TO_DAYS("2021-01-01")']}], "TO_DAYS(`d`)", (), _D),
        {"d": "2020-06-01"},
        0,
    ),
    (
        parted(3, [{"in_values": [[r"'a\\b'"]]}, {"in_values": [[r"'a\b\\'"]]}], "", ("s",), _S),
        {"s": b"a\\b"},
        0,
    ),
    (
        parted(3, [{"in_values": [[r"'a\\b'"]]}, {"in_values": [[r"'a\b\\'"]]}], "", ("s",), _S),
        {"s": b"a\\b\\"},
        1,
    ),
    (
        parted(3, [{"in_values": [['"it\'s \\"\\u00a0\\""']]}], "", ("s",), _S),
        {"s": 'it\'s "\u00a0"'.encode()},
        0,
    ),
    (
        parted(
            3, [{"in_values": [["'as'"]]}, {"in_values": [["'EU'"], ["NULL"]]}], "", ("c",), _CI
        ),
        {"c": b"eu "},
        1,
    ),
    (
        parted(
            3,
            [{"in_values": [["1", "'x'"]]}, {"in_values": [["1", "'y'"]]}],
            "",
            ("a", "s"),
            _A,
            _S,
        ),
        {"a": 1, "s": b"y"},
        1,
    ),
    (parted(4, [{}] * 4, "", ("a",), _A), {"a": 1}, 3),  # CRC-32 of "1" is 0x83DCEFB7
    (parted(4, [{}] * 4, "", ("a",), _A), {"a": None}, 1),  # of a zero byte 0xD202EF8D
]


@pytest.mark.parametrize(("table", "row", "expected"), _CASES)
def test_rows_lie_in_the_partition_that_tidb_puts_them_in(
    table: Table, row: dict, expected: int | None
) -> None:
    assert partition_of(table, row) == (None if expected is None else 100 + expected)


@pytest.mark.parametrize(
    ("table", "row"),
    [
        (parted(1, _BOUNDS, "YEAR(`t`)", (), Column(9, "t", 0, 7)), {"t": "2020-01-01 00:00:00"}),
        (parted(1, _BOUNDS, "YEARWEEK(`d`)", (), _D), {"d": "2020-01-01 00:00:00"}),
        (parted(3, [{"in_values": [["'straße'"]]}], "", ("c",), _CI), {"c": b"STRASSE"}),
        (parted(9, _BOUNDS, "`a`", (), _A), {"a": 1}),
        (parted(1, _BOUNDS, "`gone`", (), _A), {"a": 1}),
    ],
)  # fmt: skip
def test_a_partition_that_only_tidb_can_tell_is_an_error_that_names_the_table(
    table: Table, row: dict
) -> None:
    with pytest.raises(PartitionError, match=r"table d\.t: "):
        partition_of(table, row)
