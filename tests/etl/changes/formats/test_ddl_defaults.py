"""DDL text without defaults of masked columns."""

from __future__ import annotations

import pytest

from sluice.etl.changes.formats.ddl_defaults import without_defaults

CUT = "ALTER TABLE t /* values of masked columns are left out */"


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ("ADD c INT DEFAULT 5, ADD d INT", "ADD c INT DEFAULT '***', ADD d INT"),
        ("ADD c TEXT DEFAULT 'my secret' COMMENT 'x'", "ADD c TEXT DEFAULT '***' COMMENT 'x'"),
        ("DEFAULT (concat('my secret','a')) AFTER b", "DEFAULT (concat('***','***')) AFTER b"),
        ("ADD c TEXT DEFAULT _utf8mb4'my secret'", "ADD c TEXT DEFAULT _utf8mb4'***'"),
        ("ADD c INT DEFAULT -1.5 NOT NULL", "ADD c INT DEFAULT -'***'.'***' NOT NULL"),
        ("c INT DEFAULT NULL, DEFAULT CHARSET utf8", "c INT DEFAULT NULL, DEFAULT CHARSET utf8"),
        ("ADD c INT /*!80000 DEFAULT 'my secret' */", "ADD c INT /*!80000 DEFAULT '***' */"),
        (
            'ALTER TABLE t ALTER c SET DEFAULT "my secret"',
            "ALTER TABLE t ALTER c SET DEFAULT '***'",
        ),
        ("ALTER TABLE t ADD c TEXT DEFAULT 'it\\'s my secret'", CUT),
        ("ALTER TABLE t ADD c TEXT COMMENT 'my secret'", "ALTER TABLE t ADD c TEXT COMMENT '***'"),
        ("ADD c TEXT /* my secret */ AFTER b", "ADD c TEXT /* *** */ AFTER b"),
    ],
)
def test_a_statement_loses_its_defaults_and_nothing_else(query: str, left: str) -> None:
    assert without_defaults(query, ["my secret"]) == left
