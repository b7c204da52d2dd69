"""The pattern language against a model that knows only literal characters, * and ?."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.etl.changes.rules import PatternError, check, reads_otherwise
from sluice.etl.changes.rules.name_pattern import matches, plain_name

NAMES = st.text("abAB_1$", max_size=6)


def fits(pattern: str, name: str) -> bool:
    """The model: * any run of characters, ? any one, all else itself."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(fits(pattern[1:], name[i:]) for i in range(len(name) + 1))
    return bool(name) and pattern[0] in ("?", name[0]) and fits(pattern[1:], name[1:])


@given(st.text("abAB_1$*?", min_size=1, max_size=7), NAMES)
def test_wildcards_match_whole_names_whatever_the_case(pattern: str, name: str) -> None:
    if pattern.endswith("$"):
        pattern += "b"
    assert matches(pattern, name) == fits(pattern.lower(), name.lower())


@pytest.mark.filterwarnings("ignore:Possible nested set")
@given(st.text("ab_.+()|[]^", min_size=1, max_size=6), NAMES)
def test_a_pattern_without_wildcards_is_the_originals_anchored_expression(
    pattern: str, name: str
) -> None:
    try:
        expected = re.search(f"^{pattern}\\Z", name, re.IGNORECASE) is not None
    except re.error:
        with pytest.raises(PatternError):
            check(pattern)
        return
    assert matches(pattern, name) == expected
    assert not reads_otherwise(pattern)


@pytest.mark.filterwarnings("ignore:Possible nested set")
@given(st.text("ab_.*+?()|[]^$", min_size=1, max_size=6), NAMES)
def test_a_tilde_makes_an_expression_that_may_match_anywhere(pattern: str, name: str) -> None:
    try:
        expected = re.search(pattern, name, re.IGNORECASE) is not None
    except re.error:
        with pytest.raises(PatternError):
            check("~" + pattern)
        return
    assert matches("~" + pattern, name) == expected


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("shop*", "shop SHOP_1 shopp", "sho xshop"),
        ("a.b", "axb a.b", "ab aab_"),
        ("log_.*", "log_ log_1", "xlog_"),
        ("t_[0-9]*", "t_ t_33", "t_x"),
        ("t_[[:digit:]]+", "t_12", "t_"),
        ("(a|b)?x", "ax x", "cx"),
        ("~^test[_0-9]", "test_1 TEST9x", "atest_"),
        ("~x\\z", "ax", "xa"),
    ],
)
def test_what_is_written_as_in_drainer_toml_means_the_same(
    pattern: str, fitting: str, others: str
) -> None:
    assert all(matches(pattern, name) for name in fitting.split())
    assert not any(matches(pattern, name) for name in others.split())


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("~(", "unterminated subpattern at position 1"),
        ("[a", "unterminated character set at position 0"),
        ("", "empty"),
        ("a\\", "backslash"),
        ("~*", "nothing to repeat at position 1"),
    ],
)
def test_a_mistake_is_told_with_its_place(pattern: str, text: str) -> None:
    with pytest.raises(PatternError, match=text):
        check(pattern)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("50%", "50%"),
        ("d`b", "d`b"),
        ("Shop@EU", "shop@eu"),
        ("a~b#1", "a~b#1"),
        ("my\\.db", "my.db"),
        ("c\\*", "c*"),
    ],
)
def test_signs_that_mean_nothing_in_a_pattern_leave_it_one_name(pattern: str, name: str) -> None:
    assert plain_name(pattern) == name
    assert matches(pattern, name)


@given(
    st.text("ab\\$.~%'@-*?+{}()[]|^ü1", min_size=1, max_size=5),
    st.text("ab$.~%'@-*ü1", min_size=1, max_size=4),
)
def test_no_other_name_fits_a_pattern_that_is_one_name(pattern: str, name: str) -> None:
    only = plain_name(pattern)
    if only is not None:
        assert matches(pattern, only)
        assert matches(pattern, name) == (name == only)


def test_only_a_pattern_without_anything_special_is_one_name() -> None:
    assert plain_name("Shop_1") == "shop_1"
    assert [plain_name(p) for p in ("shop*", "~shop", "a.b", "a?", "[ab]")] == [None] * 5
    assert [p for p in ("a*", "a.*", "a?", "~a*", "[a]*") if reads_otherwise(p)] == ["a*", "a?"]
