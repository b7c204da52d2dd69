"""What follows from a table's definition is made once for each definition, and never taken for
another one's.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

from sluice.tidb import columns as schema_columns
from sluice.tidb import id_maps as by_id
from sluice.tidb import table_cache as per_table
from sluice.tidb.id_maps import tables_by_id
from sluice.tidb.schema import Column, Table
from sluice.tidb.table_cache import TableCache

TABLE = Table(
    7,
    1,
    "shop",
    "t",
    (Column(1, "id", 0, 3, flag=3), Column(2, "v", 1, 3)),
    (),
    "",
    "",
    True,
    False,
)


def names_of(table: Table, asked: list[str]) -> tuple[str, ...]:
    asked.append(table.name)
    return tuple(column.name for column in table.columns)


def test_it_is_made_again_when_the_definition_is_another() -> None:
    asked: list[str] = []
    names = TableCache(lambda table: names_of(table, asked))
    renamed = replace(TABLE, columns=(TABLE.columns[0], replace(TABLE.columns[1], name="w")))
    assert names(TABLE) == names(replace(TABLE)) == ("id", "v")
    assert len(asked) == 1
    assert names(renamed) == ("id", "w")
    assert names(TABLE) == ("id", "v")
    assert len(asked) == 2


def test_alike_tables_have_one_answer_and_others_their_own() -> None:
    asked: list[Table] = []

    def told(table: Table) -> tuple[object, ...]:
        asked.append(table)
        return (
            table.primary_key,
            table.is_partitioned,
            table.collate,
            [column.name for column in table.columns],
        )

    answers = TableCache(told)
    document = TABLE.to_json()
    partition = {"enable": True}
    others = [
        {**document, "pk_is_handle": False},
        {**document, "collate": "utf8mb4_bin"},
        {
            **document,
            "columns": [
                {**column, "name": column["name"].upper()} for column in document["columns"]
            ],
        },
        {**document, "partition": partition},
    ]
    made = [
        Table.from_json({**json.loads(json.dumps(document)), "id": n, "name": f"t{n}"})
        for n in range(5)
    ]
    assert all(table.columns is made[0].columns for table in made)
    assert [answers(table) for table in made] == [told(table) for table in made]
    assert len(asked) == 1 + 5
    for number, other in enumerate(others, 10):
        table = Table.from_json({**json.loads(json.dumps(other)), "id": number})
        assert answers(table) == told(table)
    assert len(asked) == 6 + 2 * len(others)


def test_a_table_is_equal_to_the_one_that_was_sent_elsewhere() -> None:
    assert TABLE.stored_columns == TABLE.columns and TABLE.handle_column is TABLE.columns[0]
    again = pickle.loads(pickle.dumps(TABLE))
    assert again == TABLE and hash(again.columns) == hash(TABLE.columns)
    assert again.stored_columns == TABLE.stored_columns


def test_a_document_that_is_the_same_gives_the_same_table_and_another_one_doesnt() -> None:
    text = json.dumps({"7": TABLE.to_json()})
    first, again = (tables_by_id(json.loads(text))[7] for _ in range(2))
    assert first == TABLE
    assert first is again
    assert tables_by_id(json.loads(text.replace('"v"', '"w"')))[7] != TABLE
    assert tables_by_id(json.loads(text))[7] == TABLE


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_table, "_MAX_CACHED_COLUMNS", 20)
    monkeypatch.setattr(by_id, "_MAX_CACHED_COLUMNS", 20)
    monkeypatch.setattr(schema_columns, "_MAX_CACHED_COLUMNS", 20)
    names, parsed = TableCache(lambda table: table.columns[0].name), by_id._ParsedCache()
    for number in range(100):
        columns = replace(TABLE.columns[0], name=f"c{number}"), TABLE.columns[1]
        table = replace(TABLE, id=number, columns=columns)
        assert names(table) == f"c{number}"
        assert parsed(table.to_json()) == table
        assert len(names._made) <= 10 and len(names._alike) <= 10
        assert len(parsed._known) <= 10
        assert len(schema_columns._forms) <= 10
