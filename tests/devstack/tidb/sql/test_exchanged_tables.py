"""A table that took a partition's id by EXCHANGE PARTITION is read by its own columns."""

import random
from dataclasses import replace

import pytest

from sluice.devstack.recording import Recording
from sluice.devstack.tidb.sql import Versions
from tests.judge import kinds, recording
from tests.judge.invented_tidb import Upstream, create_schema, create_table
from tests.judge.tables import Column, Index, Partition, Table


@pytest.fixture
def upstream():
    return Upstream(random.Random(1))


def exchange(upstream, table, place, other):
    """Exchange a partition with `other`, both without rows."""
    partition = table.partitions[place]
    text = f"ALTER TABLE `{table.name}` EXCHANGE PARTITION `{partition.name}` WITH TABLE"
    job = upstream.job(42, f"{text} `{other.name}`", schema_id=other.schema_id, table_id=other.id)
    del upstream.tables[other.id]
    table.partitions[place] = replace(partition, id=other.id)
    other.id = partition.id
    upstream.tables[other.id] = other
    job.finish(table, schema_state=0)


def like(upstream, table, name):
    made = replace(table.shape(), id=upstream.new_id(), name=name, partitions=[], by="")
    create_table(upstream, made)
    return made


def add_column(upstream, table, name):
    job = upstream.job(
        5,
        f"ALTER TABLE `{table.name}` ADD COLUMN `{name}` BIGINT",
        schema_id=table.schema_id,
        table_id=table.id,
    )
    table.max_column += 1
    table.columns.append(Column(table.max_column, name, kinds.BIGINT))
    job.finish(table)


def test_a_table_has_its_own_columns_under_the_id_of_a_former_table(upstream, tmp_path):
    schema = create_schema(upstream, "shop")
    columns = [Column(1, "k", kinds.INT, nullable=False), Column(2, "v", kinds.BIGINT)]
    table = Table(upstream.new_id(), schema, "parts", columns, max_column=2, by="k")
    table.indexes.append(Index(1, "PRIMARY", ("k",), True, True))
    table.partitions = [
        Partition(upstream.new_id(), "p0", 10),
        Partition(upstream.new_id(), "p1", 20),
    ]
    create_table(upstream, table)
    first = like(upstream, table, "first")
    first_id = first.id
    exchange(upstream, table, 0, first)
    add_column(upstream, table, "w")
    second = like(upstream, table, "second")
    exchange(upstream, table, 0, second)
    assert second.id == first_id
    row = upstream.transaction()
    assert row.insert(second, {"k": 1, "v": 2, "w": 3})
    row.commit()
    recording.write(upstream, tmp_path / "recording")

    versions = Versions(Recording(tmp_path / "recording"))
    catalog = versions.catalog(upstream.committed)
    for each in (table, first, second):
        names = [column.name for column in each.columns]
        assert [c["name"]["O"] for c in catalog.infos[each.id]["cols"]] == names
        assert [c.name for c in catalog.tables[each.id].columns] == names
    assert list(versions.rows(catalog.tables[second.id], upstream.committed)) == [[1, 2, 3]]
