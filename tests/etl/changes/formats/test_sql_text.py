"""SQL text that sessions read in different ways."""

from __future__ import annotations

import pytest

from sluice.etl.changes.formats.sql_text import double_backslashes


@pytest.mark.parametrize(
    ("plain", "escaped"),
    [
        ("SELECT 'it''s'", "SELECT 'it''s'"),
        (r"SELECT 'a\b', '\'", r"SELECT 'a\\b', '\\'"),
        (r"SELECT '\''\', `a\`, `b``'\` + '\n'", r"SELECT '\\''\\', `a\`, `b``'\` + '\\n'"),
        (r"""DEFAULT "it's \"" COMMENT ''""", r"""DEFAULT "it's \\"" COMMENT ''"""),
    ],
)
def test_backslashes_of_strings_are_doubled_and_those_of_names_are_not(
    plain: str, escaped: str
) -> None:
    assert double_backslashes(plain) == escaped
