"""A table's name is a pair: one text stands for it, and no code takes names apart or puts them
together by itself.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.tidb.table_name import (
    TableName,
    TableNameError,
    abbreviate,
    exactly,
    fits,
    full_name,
    schema_fits,
    suggestion,
)

ROOT = Path(__file__).parents[2]
ROOMS = (
    "cli",
    "dags",
    "etl",
    "expectations",
    "plugins",
    "relay",
    "sluice/airflow",
    "spark",
    "tidb",
)
PARTS = st.text(st.sampled_from("ab.`*?[]'\" %ÄΣ🙂"), min_size=1, max_size=6) | st.text(
    min_size=1, max_size=12
)
NAMES = st.builds(TableName, PARTS, PARTS)


@given(NAMES)
@example(TableName("my.db", "orders"))
@example(TableName("`", "``.`"))
def test_the_text_of_a_name_is_read_back_as_the_same_pair(name: TableName) -> None:
    assert TableName.parse(str(name)) == name
    assert fits(str(name), str(name)) and fits(str(name), exactly(str(name)))
    assert schema_fits(name.schema, exactly(str(name)))


@given(NAMES, NAMES)
@example(TableName("a.b", "c"), TableName("a", "b.c"))
@example(TableName("a*", "c"), TableName("ab", "c"))
def test_two_names_have_two_texts_and_none_is_taken_for_the_other(
    one: TableName, other: TableName
) -> None:
    assert (str(one) == str(other)) == (one == other)
    assert fits(str(one), exactly(str(other))) == (one == other)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("shop.orders", ("shop", "orders")),
        ("`my.db`.orders", ("my.db", "orders")),
        ("`shop`.`order-items`", ("shop", "order-items")),
        ("s.`a``b`", ("s", "a`b")),
        ("s.a`b", ("s", "a`b")),
        ("MyApp.100% 🙂", ("MyApp", "100% 🙂")),
    ],
)
def test_names_are_read_as_people_write_them(text: str, name: tuple[str, str]) -> None:
    assert TableName.parse(text) == name


@pytest.mark.parametrize(
    "text", ["orders", "my.db.orders", ".orders", "shop.", "`shop.orders", "`a`b.c.d", ""]
)
def test_what_may_be_read_in_two_ways_or_none_is_refused(text: str) -> None:
    with pytest.raises(TableNameError, match="names no table"):
        TableName.parse(text)


@pytest.mark.parametrize(
    ("name", "glob", "expected"),
    [
        (("my.db", "orders"), "`my.db`.*", True),
        (("my.db", "orders"), "`my.*`.ord?rs", True),
        (("my.db", "orders"), "*.orders", True),
        (("my.db", "orders"), "*", True),
        (("my.db", "orders"), "my.*", False),
        (("my.db", "orders"), "*.db*", False),
        (("my", "db.orders"), "`my.db`.orders", False),
        (("shop", "orders"), "`shop`.*", True),
        (("shop", "orders"), "sh*ers", True),
        (("shop", "orders"), "shop.order", False),
    ],
)
def test_a_glob_is_of_the_schema_and_of_the_table(
    name: tuple[str, str], glob: str, expected: bool
) -> None:
    assert fits(full_name(*name), glob) is expected
    assert schema_fits(name[0], glob) or not expected


def _modules() -> list[Path]:
    return [
        path
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if path.name != "table_name.py"
    ]


def test_no_code_takes_a_name_apart_as_text() -> None:
    others = re.compile(
        r"/codec/|/conversion/|_row_images|_dump_fi|store_connection|version_check|files_folder|iceberg|debezium_types|debezium_avro|avro_binary"
    )
    parting = re.compile(r"""\.r?(split|partition)\(\s*["']\.["']""")
    found = [
        str(path)
        for path in _modules()
        if not others.search(str(path)) and parting.search(path.read_text())
    ]
    assert not found, "TableName.parse reads a table's name"


def test_no_code_puts_a_name_together_as_text() -> None:
    joined = re.compile(
        r"\{[^{}]*(schema|database)[^{}(]*\}\.\{(?!self\.checkpoint|quote)[^{}(]*(name|table)[^{}(]*\}"
    )
    allowed = {
        "etl/settings/pipelines.py",
        "etl/settings/sections.py",
        "etl/settings/rules.py",
        "etl/downstream/_writer_lock.py",
    }
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in _modules()
        if str(path.relative_to(ROOT)) not in allowed
        for match in joined.finditer(path.read_text())
    ]
    assert not found, "full_name puts a table's name together"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("bank.leger", "; did you mean bank.ledger?"),
        ("BANK.LEDGER", "; did you mean bank.ledger?"),
        ("ledger", "; did you mean bank.ledger?"),
        ("shop.Order", "; did you mean shop.Orders?"),
        ("nothing.like_it", ""),
        ("*.x?", ""),
    ],
)
def test_a_mistyped_name_is_answered_with_those_that_are_alike(typed: str, expected: str) -> None:
    assert suggestion(typed, ["bank.ledger", "shop.Orders", "crm.person"]) == expected


def test_a_list_of_names_ends_with_the_number_of_those_left_out():
    names = [f"shop.t{n}" for n in range(12)]
    assert abbreviate(names[:2], 2) == "shop.t0, shop.t1"
    assert abbreviate(iter(names[:3]), 2) == "shop.t0, shop.t1 and 1 more"
    assert abbreviate(names).endswith("shop.t9 and 2 more")
    assert abbreviate([]) == ""
