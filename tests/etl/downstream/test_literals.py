"""One way to write a value into SQL, read alike in every mode of a session.

And no other way anywhere.
"""

from __future__ import annotations

import ast
import decimal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.etl.changes.formats.sql_columns import literal_column
from sluice.etl.changes.formats.sql_text import fill_placeholders, literal, quote_name
from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.ddl._reconcile import reconcile
from sluice.etl.downstream.ddl._session import ddl_session
from sluice.tidb.ddl_job import DdlEffect, DdlJob
from sluice.tidb.schema import Column
from tests.etl.story import column, table
from tests.examples import examples

MODES = ("", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES")
NASTY = (
    "",
    "'",
    "''",
    "\\",
    "\\'",
    "'\\",
    "\\\\'; DROP TABLE x; -- ",
    "%s %d %%",
    '"',
    "\0",
    "a\0'b",
    "\x1a\n\r\t\b",
    "é😀",
    "x' OR '1'='1",
    "{}",
    "`",
)
ETL = Path(__file__).parents[3] / "etl"


@pytest.mark.parametrize("mode", MODES)
def test_text_and_bytes_are_read_back_as_they_were_in_every_mode(
    session: MySQLSession, mode: str
) -> None:
    session.query("SET SESSION sql_mode = %s", (mode,))
    for text in NASTY:
        assert session.query("SELECT %s", (text,)) == [(text,)]
        assert session.query("SELECT HEX(%s)", (text.encode() + b"\xff\\'",)) == [
            ((text.encode() + b"\xff\\'").hex().upper(),)
        ]
    array = pa.array([*NASTY, None], pa.large_string())
    for text, made in zip(
        [*NASTY, None],
        literal_column(array, Column(1, "c", 0, 15, charset="utf8mb4")).to_pylist(),
        strict=True,
    ):
        assert session.query(b"SELECT " + made) == [(text,)]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=examples(60),
    deadline=None,
)
@given(text=st.text(st.characters(codec="utf-8")), mode=st.sampled_from(MODES))
def test_any_text_is_read_back_in_any_mode(session: MySQLSession, text: str, mode: str) -> None:
    session.query(f"SET SESSION sql_mode = '{mode}'")
    assert session.query("SELECT %s, CHAR_LENGTH(%s)", (text, text)) == [(text, len(text))]


def test_numbers_are_read_back_as_the_same_number(session: MySQLSession) -> None:
    for number in (
        0,
        -1,
        2**64 - 1,
        0.1,
        1e300,
        5e-324,
        decimal.Decimal("-12345678901234567890.123456789"),
        decimal.Decimal("1E+3"),
    ):
        assert session.query("SELECT %s", (number,)) == [(number,)]
    assert session.query("SELECT %s, %s", (None, True)) == [(None, 1)]
    for value in (float("nan"), float("inf"), decimal.Decimal("NaN"), object(), [1], "\ud800"):
        with pytest.raises(ValueError):
            literal(value)


def test_only_places_outside_of_names_are_filled() -> None:
    name = quote_name("a %s ` %s")
    assert (
        fill_placeholders(f"SELECT {name} FROM t WHERE x LIKE '50%' AND y = %s", ("%s",))
        == f"SELECT {name} FROM t WHERE x LIKE '50%' AND y = '%s'"
    )
    for args in ((), (1, 2)):
        with pytest.raises(ValueError, match="places"):
            fill_placeholders("SELECT %s", args)


@pytest.mark.parametrize("mode", MODES)
def test_a_default_with_quotes_and_backslashes_given_to_rows_that_are_there_stays_a_value(
    session: MySQLSession, mode: str
) -> None:
    text = '{"a": "\\\\\' WHERE 1; DROP TABLE d.t; -- \\" %s"}'
    before = table(11, "t", "id int", primary="id")
    added = column(2, "j json", origin_default=text)
    after = table(11, "t", "id int", added, primary="id")
    if session.dialect.has_json_type:
        pytest.skip(
            "the server's JSON is a type of its own: existing rows are given no text for it"
        )
    session.query("CREATE DATABASE d")
    session.query("CREATE TABLE d.t (id int PRIMARY KEY, j json)")
    session.query("INSERT INTO d.t (id) VALUES (1)")
    session.query("SET SESSION sql_mode = %s", (mode,))
    ddl = DdlJob(1, effect=DdlEffect({}, {11: after}), before={11: before})
    with ddl_session(session):
        reconcile(session, ddl)
    assert session.query("SELECT j FROM d.t") == [(text,)]


def _is_digits(value: ast.AST) -> bool:
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in ("hex", "hexdigest")
    )


def _pasted(tree: ast.AST) -> Iterator[ast.AST]:
    """F-strings and concatenations in which a quote is followed by a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for before, after in zip(node.values, node.values[1:], strict=False):
                text = before.value if isinstance(before, ast.Constant) else ""
                if (
                    isinstance(after, ast.FormattedValue)
                    and str(text).endswith("'")
                    and not _is_digits(after.value)
                ):
                    yield node
        elif (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Add | ast.Mod)
            and isinstance(node.left, ast.Constant)
        ):
            value: Any = node.left.value
            found = value.decode() if isinstance(value, bytes) else value
            if isinstance(found, str) and (
                found.endswith("'") if isinstance(node.op, ast.Add) else "'%" in found
            ):
                yield node


# What is pasted between quotes there: digits of numbers, our own constants and random names, rules
# of filters in messages, keys as `sluice find --key` takes them, fields of LOAD DATA's text that
# are escaped already.
ALLOWED = {
    "sql_text.py": {"quote_text", "literal"},
    "sql_columns.py": {"literal_column", "_quoted", "_text_literals", "_same_digest"},
    "_generate.py": {"_default_clause"},
    "ddl_text.py": {"_normal_string"},
    "_session_setup.py": {"_literal"},
    "load_statements.py": {"insert_statement"},
    "mysql.py": {"load"},
    "_statements_ahead.py": {"pipelined_load"},
    "differences.py": {"_key_text"},
    "filters.py": {"reason"},
    "write_executor.py": {"_fallback_hint"},
    "routes.py": {"*"},
}


def test_no_module_pastes_a_value_between_quotes_in_a_way_of_its_own() -> None:
    found = []
    for path in sorted(ETL.rglob("*.py")):
        source = path.read_text()
        for word in ("mogrify", "escape_string", "pymysql.converters"):
            assert word not in source, f"{path.name} uses {word}"
        allowed = ALLOWED.get(path.name, set())
        for function in ast.walk(ast.parse(source)):
            if isinstance(function, ast.FunctionDef) and not {"*", function.name} & allowed:
                found += [f"{path.name}:{node.lineno}" for node in _pasted(function)]  # type: ignore[attr-defined]
    assert found == []
