"""Names that TiDB takes for one."""

from __future__ import annotations

import pytest

from sluice.tidb.folded import folded


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ΟΔΟΣ", "οδοσ"),
        ("Orders", "ORDERS"),
        ("İd", "ID"),
        ("ÉTÉ", "été"),
        ("Ā", "ā"),
        ("Ⅷ", "ⅷ"),
        ("Ǆ", "ǆ"),
    ],
)
def test_names_that_differ_in_case_are_one(one: str, other: str) -> None:
    assert folded(one) == folded(other)


@pytest.mark.parametrize(
    ("one", "other"), [("οδος", "ΟΔΟΣ"), ("straße", "STRASSE"), ("a", "á"), ("ı", "I")]
)
def test_names_that_only_look_alike_are_two(one: str, other: str) -> None:
    assert folded(one) != folded(other)
