"""Unique keys of masked columns: values stay different, or the rule is refused by name."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.changes.rules import ColumnRuleError
from sluice.etl.settings.rules import parse_filter
from sluice.relay import UPDATE
from sluice.tidb.rows import encode_update
from sluice.tidb.schema import Table
from tests.etl.apply.ruled_columns import apply, settings_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.masking import KEY, SECTION, VARIABLE, masked
from tests.etl.story import Row, Story, column, table

COLUMNS = ("id int", "mail varchar(64) not null", "phone varchar(20)", "code varchar(32)", "n int")
UNIQUE = ("mail", "phone,n", "code(8)")
PEOPLE = table(11, "t", *COLUMNS, primary="id", unique=UNIQUE)
MASKS = {"mail": "hash", "phone": "digits", "code": "null"}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)


def as_masked(row: Row) -> tuple[Any, ...]:
    mail, phone = masked(row["mail"], "hash"), masked(row["phone"], "digits")
    return row["id"], mail, phone, None, row["n"]


@pytest.mark.parametrize("mode", [pytest.param("atomic", marks=pytest.mark.slow), "parallel"])
def test_rows_exchange_values_of_masked_keys_as_upstream(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    story, rng = Story(mariadb, tmp_path), random.Random(5)
    story.create(PEOPLE, "CREATE TABLE t (...)")
    settings = settings_of(story, {"mask": MASKS}, filter={"mask": SECTION}, mode=mode)
    rows = [
        {"id": n, "mail": f"m{n}", "phone": f"0{n}", "code": f"c{n}", "n": n % 2} for n in range(20)
    ]
    story.insert(PEOPLE, *rows)
    apply(story, settings)
    for _ in range(6):
        for _ in range(5):
            one, other = rng.sample(range(len(rows)), 2)
            names = rng.choice([("mail",), ("phone", "n"), ("mail", "code")])
            new = [
                rows[a] | {name: rows[b][name] for name in names}
                for a, b in ((one, other), (other, one))
            ]
            free = rows[one] | {"mail": "free", "phone": None, "code": None}
            story.changes(
                (PEOPLE, UPDATE, encode_update(PEOPLE, rows[one], free)),
                (PEOPLE, UPDATE, encode_update(PEOPLE, rows[other], new[1])),
                (PEOPLE, UPDATE, encode_update(PEOPLE, free, new[0])),
            )
            rows[one], rows[other] = new
        gone = rows.pop(rng.randrange(len(rows)))
        story.delete(PEOPLE, gone)
        rows.append(gone | {"id": gone["id"] + 100})
        story.insert(PEOPLE, rows[-1])
        apply(story, settings)
        assert sorted(story.rows("t")) == sorted(map(as_masked, rows))


@pytest.mark.parametrize(
    ("of", "mask", "why"),
    [
        (PEOPLE, {"id": "null"}, "the primary key needs"),
        (PEOPLE, {"mail": "email"}, "the key u2 needs: email may make one of two values"),
        (PEOPLE, {"mail": {"partial": 9}}, "the key u2 needs: partial '9' may make one of two"),
        (PEOPLE, {"n": {"constant": 1}}, "the key u3 needs: constant '1' may make one of two"),
        (PEOPLE, {"code": "hash"}, "the key u4 needs: 8 hexadecimal digits of a hash may be alike"),
        (PEOPLE, {"code": "digits"}, "the key u4 needs: it has a part of the column alone"),
        (
            table(11, "t", "id int", "a varchar(31)", primary="id", unique=("a",)),
            {"a": "hash"},
            "the key u2 needs: 31 hexadecimal digits of a hash may be alike, and 32 aren't",
        ),
        (
            table(11, "t", "id int", "a varchar(64) not null", unique=("a",)),
            {"a": "hash"},
            "the key u2 needs$",
        ),
    ],
)
def test_a_mask_that_may_make_one_of_two_keys_is_refused(
    of: Table, mask: dict[str, Any], why: str
) -> None:
    rule = {"tables": ["d.t"], "mask": mask}
    with pytest.raises(ColumnRuleError, match=rf"masks column .* of d\.t, which {why}"):
        parse_filter({"columns": [rule], "mask": SECTION})[0].narrowed(of)


def test_digits_are_no_key_in_a_collation_with_other_signs_for_them() -> None:
    of = table(11, "t", "id int", "a varchar(40)", primary="id", unique=("a",))
    unicode = replace(
        of,
        columns=tuple(
            replace(column(c.id, "a varchar(40)"), offset=c.offset, collate="utf8mb4_unicode_ci")
            if c.name == "a"
            else c
            for c in of.columns
        ),
    )
    rule = {"tables": ["d.t"], "mask": {"a": "digits"}}
    filters = parse_filter({"columns": [rule], "mask": SECTION})[0]
    filters.narrowed(of)
    with pytest.raises(ColumnRuleError, match="unicode_ci may hold other signs for digits"):
        filters.narrowed(unicode)
