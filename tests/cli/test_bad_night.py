"""The bad night: somebody deleted rows of three tables in batches, and a person who knows nothing
of it finds what happened and takes it back, in a terminal.
"""

import contextlib
import re

import pytest

from tests.bad_night import TABLES, Terminal, bad_night, is_repaired

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]


@pytest.fixture
def night(mariadb, tmp_path):
    with bad_night(mariadb, tmp_path) as night:
        yield night


@pytest.fixture
def terminal(night):
    with contextlib.closing(Terminal(night.config)) as terminal:
        yield terminal


def test_by_commands_each_of_which_names_the_next(night, terminal):
    assert night.state() != night.before
    said, code = terminal.type("sluice find --since 2h --table d.acount")
    assert code == 1 and "did you mean d.account?" in said
    assert said.splitlines()[0].startswith("pipeline ") and "$SLUICE_CONFIG" in said
    find = "sluice find --since 2h --table 'd.*' --kind delete --sort size --group table"
    said, code = terminal.type(find)
    assert code == 0 and "sluice undo --since" in said
    ranges = re.findall(r"(d\.\w+): 60 deleted in 9 transactions\n\s+(\d{15,}) .* (\d{15,})", said)
    assert sorted(name for name, _, _ in ranges) == TABLES
    first, last = min(ts for _, ts, _ in ranges), max(ts for _, _, ts in ranges)
    undo = f"sluice undo --since before:{first} --until {last} --table 'd.*' --kind delete"
    assert f"3 groups as one:\n    {undo} --dry-run" in said.replace("\r\n", "\n")
    for name, first, last in ranges:
        one = f"sluice undo --since before:{first} --until {last} --table {name} --kind delete"
        assert f"    {one} --dry-run" in said
    said, code = terminal.type(f"{undo} --dry-run --rows 2")
    assert code == 0 and "180 rows looked at" in said and "no conflicts" in said
    assert "+ d.account" in said and "--apply" in said
    said, code = terminal.type(f"{undo} --apply")
    assert code == 0 and "180 rows are what they were" in said
    is_repaired(night, TABLES)
