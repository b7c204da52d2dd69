"""Messages of a dump's rows have the columns as rules leave out, rename or mask them."""

from __future__ import annotations

import re

import pytest

from sluice.etl.changes.messages import MessageFormat
from sluice.etl.changes.rules import Filter, Routes
from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.copy.plan import make_copy_plan
from sluice.etl.copy.worker import make_messages
from sluice.etl.settings.rules import parse_filter
from tests.etl.copy.copying import DUMPS, RECORDING, definitions
from tests.etl.masking import KEY, SECTION, VARIABLE, shifted

TABLE = "bank.account"


def messages(dump: str, filters: Filter) -> tuple[int, bytes]:
    """How many rows of a table come, and all their messages."""
    source = DumplingFolder.open(str(RECORDING / dump))
    plan = make_copy_plan(source, definitions(source.position), filters, Routes(), (TABLE,))
    assert not plan.problems
    rows, found = 0, b""
    for chunk, place in zip(plan.chunks, plan.of_table, strict=True):
        table = plan.tables[place].table
        options = MessageFormat("canal-json")
        for batch in make_messages(source.spec(), chunk, table, options):
            rows += batch.column("rows")[0].as_py()
            found += batch.column("payload")[0].as_buffer().to_pybytes()
    return rows, found


@pytest.mark.parametrize("dump", DUMPS)
def test_messages_of_a_dump_lack_the_columns_that_are_left_out(dump: str) -> None:
    rule = {"tables": [TABLE], "leave-out": ["updated"]}
    rows, found = messages(dump, parse_filter({"columns": [rule]})[0])
    every, whole = messages(dump, Filter())
    assert rows == every > 0
    assert b'"updated"' in whole and b'"updated"' not in found
    assert whole.count(b'"balance"') == found.count(b'"balance"') > rows


@pytest.mark.parametrize("dump", DUMPS)
def test_messages_of_a_dump_have_new_names(dump: str) -> None:
    rule = {"tables": [TABLE], "rename": {"Balance": "saldo"}}
    _, found = messages(dump, parse_filter({"columns": [rule]})[0])
    _, whole = messages(dump, Filter())
    values = [
        re.findall(rb'"%b":"(.*?)"' % n, x) for n, x in ((b"balance", whole), (b"saldo", found))
    ]
    assert values[0] == values[1] != []
    assert b'"balance"' not in found


@pytest.mark.parametrize("dump", DUMPS)
def test_messages_of_a_dump_have_masked_values(dump: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    rule = {"tables": [TABLE], "mask": {"updated": {"shift-days": 9, "by": "id"}}}
    _, found = messages(dump, parse_filter({"columns": [rule], "mask": SECTION})[0])
    _, whole = messages(dump, Filter())
    pattern = re.compile(rb'"id":"(\d+)".*?"updated":"([-\d]+)( [:.\d]+)"')
    clear, masked = ({n: (d, t) for n, d, t in pattern.findall(x)} for x in (whole, found))
    assert len(clear) > 9
    assert masked == {
        number: (shifted(date.decode(), 9, number.decode()).encode(), time)
        for number, (date, time) in clear.items()
    }
