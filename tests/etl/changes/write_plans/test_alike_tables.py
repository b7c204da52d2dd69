"""Alike tables share what follows from their columns: none of it may name one of them."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace

import pytest

import sluice.etl.changes.formats
import sluice.etl.changes.write_plans
from sluice.tidb.schema import Table
from sluice.tidb.table_cache import TableCache
from tests.tidb.test_rows import make_table

SHARED = {
    f"{module.name}.{name}": found
    for package in (sluice.etl.changes.formats, sluice.etl.changes.write_plans)
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    if not module.ispkg
    for name, found in vars(importlib.import_module(module.name)).items()
    if isinstance(found, TableCache)
}


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("handle", ["int", "heap"])
def test_what_is_made_of_a_table_is_the_same_whatever_its_name_and_id(name, handle):
    table = make_table(handle, [0, 1, 2])
    other = replace(
        table,
        id=table.id + 1,
        schema_id=9,
        schema_name="elsewhere",
        name="another",
        comment="of all",
    )
    assert Table.from_json(table.to_json()).columns is Table.from_json(other.to_json()).columns
    made, again = (SHARED[name]._make(each) for each in (table, other))
    assert repr(made) == repr(again)
    assert "elsewhere" not in repr(again) and "another" not in repr(again)
