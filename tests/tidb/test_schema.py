"""Table descriptions: everything kept survives the window record's JSON, and keys and columns are
told right.
"""

import json

import pytest

from sluice.tidb.schema import Column, Schema, SchemaError, Table
from tests.tidb import recorded


def tables(name: str) -> dict[str, Table]:
    _, schemas, infos = recorded.meta(name)
    made = [Table.from_tidb(i, s, schemas[s]["db_name"]["O"]) for (s, _), i in infos.items()]
    return {t.full_name: t for t in made}


@pytest.mark.parametrize("name", ["types", "ddl", "shop", "orphans"])
def test_every_recorded_table_survives_json(name: str) -> None:
    found = tables(name)
    assert len(found) > 40
    for table in found.values():
        again = Table.from_json(json.loads(json.dumps(table.to_json())))
        assert again == table
        assert hash(again) == hash(table)


def test_defaults_of_every_form_survive_json() -> None:
    columns = tuple(
        Column(i, f"c{i}", i, 3, origin_default=d, default=d, elems=("a", "b'"))
        for i, d in enumerate([None, "", "x", b"\xff\0"])
    )
    table = Table(1, 2, "s", "t", columns, partition={"type": 1, "definitions": [{"id": 5}]})
    assert Table.from_json(json.loads(json.dumps(table.to_json()))) == table
    schema = Schema(3, "données", "utf8mb4", "utf8mb4_bin")
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_keys_of_every_kind_of_table() -> None:
    found = tables("types")
    kinds = {name: (t.handle_kind, t.unique_keys()) for name, t in found.items()}
    assert kinds["types.pk_un"] == ("int", [("id",)])
    assert kinds["types.pk_cl"] == ("common", [("a", "d", "x")])
    assert kinds["types.pk_nc"] == ("heap", [("a", "b")])
    assert kinds["types.nopk"] == ("heap", [])
    assert kinds["types.uq_nn"] == ("heap", [("a",), ("b", "a")])
    assert kinds["types.uq_null"] == ("heap", [("a", "b")])
    assert kinds["types.churn"] == ("int", [("id",), ("u",)])
    # keys over expressions can't be computed from a row
    assert kinds["types.expr"] == ("int", [("id",)])


def test_stored_and_writable_columns_leave_out_generated_ones() -> None:
    gen = tables("types")["types.gen"]
    assert [c.name for c in gen.stored_columns] == ["id", "a", "c", "d"]
    assert [c.name for c in gen.writable_columns] == ["id", "a"]


def test_views_sequences_and_temporary_tables_hold_no_rows() -> None:
    found = tables("ddl")
    assert found["shop.sq"].is_sequence
    assert found["shop.gt"].temp_table_type
    assert [n for n in ("shop.sq", "shop.gt", "shop.goods") if found[n].is_base_table] == [
        "shop.goods"
    ]


def test_a_document_without_a_type_names_table_and_column() -> None:
    info = {"id": 1, "name": "t", "cols": [{"id": 1, "name": {"O": "c"}, "offset": 0}]}
    with pytest.raises(SchemaError, match=r"s\.t.*column 'c'.*'type'"):
        Table.from_tidb(info, 1, "s")
    with pytest.raises(SchemaError, match="unexpected"):
        Table.from_json({"id": 1, "schema_id": 1, "schema_name": "s", "name": "t", "invented": 1})
