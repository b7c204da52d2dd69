"""What follows from a table's definition is made once for each definition, and never taken for another one's."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from upstream import by_id, per_table
from upstream.by_id import tables_by_id
from upstream.per_table import PerTable
from upstream.schema import Column, Table

TABLE = Table(7, 1, "shop", "t", (Column(1, "id", 0, 3, flag=3), Column(2, "v", 1, 3)), (), "", "", True, False)


def names_of(table: Table, asked: list[str]) -> tuple[str, ...]:
    asked.append(table.name)
    return tuple(column.name for column in table.columns)


def test_it_is_made_again_when_the_definition_is_another() -> None:
    asked: list[str] = []
    names = PerTable(lambda table: names_of(table, asked))
    renamed = replace(TABLE, columns=(TABLE.columns[0], replace(TABLE.columns[1], name="w")))
    assert names(TABLE) == names(replace(TABLE)) == ("id", "v")
    assert len(asked) == 1
    assert names(renamed) == ("id", "w")
    assert names(TABLE) == ("id", "v")
    assert len(asked) == 3


def test_a_document_that_is_the_same_gives_the_same_table_and_another_one_doesnt() -> None:
    text = json.dumps({"7": TABLE.to_json()})
    first, again = (tables_by_id(json.loads(text))[7] for _ in range(2))
    assert first == TABLE
    assert first is again
    assert tables_by_id(json.loads(text.replace('"v"', '"w"')))[7] != TABLE
    assert tables_by_id(json.loads(text))[7] == TABLE


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_table, "_MOST_COLUMNS", 20)
    monkeypatch.setattr(by_id, "_MOST_COLUMNS", 20)
    names, parsed = PerTable(lambda table: table.name), by_id._Parsed()
    for number in range(100):
        table = replace(TABLE, id=number, name=f"t{number}")
        assert names(table) == f"t{number}"
        assert parsed(table.to_json()) == table
        assert len(names._made) <= 10
        assert len(parsed._known) <= 10
