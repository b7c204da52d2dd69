"""What `sluice status` reports of verifications: only tables compared whole are equal."""

from __future__ import annotations

import pytest

from sluice.cli.status import _exit_code
from sluice.etl.display_units import counted
from sluice.etl.operate.assurance import restorable_text, verified_part
from sluice.relay.verification_log import UPSTREAM, TableVerified
from sluice.tidb import tso


def _table(name: str, differences: int = 0, problem: str = "") -> TableVerified:
    return TableVerified(name, 5, 1_000, 10, 100, differences, UPSTREAM, "verify-1", problem)


def test_tables_that_were_not_compared_are_counted_apart_and_never_equal() -> None:
    none = verified_part([_table(f"s.t{n}", problem="no key") for n in range(41)])
    assert (none.text, none.equal) == ("41 tables not compared", 0)
    mixed = verified_part([_table("s.a"), _table("s.b", 2_878), _table("s.c", 0, "no key")])
    assert mixed.text == "1 table equal, 1 table differs by 2,878 rows, 1 table not compared"
    assert mixed.uncompared == ({"table": "s.c", "problem": "no key"},)
    assert verified_part([]).text == "never compared"


def test_status_ends_with_4_while_rows_differ_and_with_1_while_a_table_is_not_compared() -> None:
    differs = {"table": "s.b", "differences": 2_878, "problem": ""}
    missed = {"table": "s.c", "differences": 0, "problem": "no key"}
    assert _exit_code({"unequal": [differs, missed]}) == 4
    assert _exit_code({"unequal": [missed]}) == 1
    assert _exit_code({"unequal": [missed], "errors": {"upstream": "silent"}}) == 3
    assert _exit_code({"unequal": [], "errors": {"archive": "silent"}}) == 0


def test_the_restorable_range_is_said_only_while_all_tables_are_in_it() -> None:
    found = {"from_ts": 0, "through_ts": 0, "archived_ts": 9, "lacking": []}
    lacking = found | {"lacking": [{"table": "s.t", "why": "no snapshot"}]}
    assert restorable_text(lacking).startswith("not all: 1 table can't be restored now")
    assert restorable_text(found) == "nothing now: there is no table"
    assert restorable_text(found | {"archived_ts": 0}) == "nothing: the archive is empty"
    moments = {"from_ts": tso.compose(1_000), "through_ts": tso.compose(2_000)}
    assert restorable_text(found | moments).startswith("all tables, as of every moment from 1970")


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1_200, "1,200 rows")]
)
def test_a_number_of_things_agrees_with_its_noun(number: int, text: str) -> None:
    assert counted(number, "row") == text
    assert counted(1, "row differs", "rows differ") == "1 row differs"
