"""The schema through time: replaying the jobs of a real cluster gives the schema it stored, and the
cases it lacks.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from sluice.tidb.ddl_actions import IGNORED_ACTIONS, Action, action_name
from sluice.tidb.ddl_job import DdlEffect
from sluice.tidb.history import SchemaHistory
from sluice.tidb.id_maps import LiveTables
from sluice.tidb.job import DdlHistoryJob, HistoryError
from sluice.tidb.schema import Schema, Table
from tests.tidb import recorded


def jobs(name: str) -> list[DdlHistoryJob]:
    return [DdlHistoryJob.from_json(document) for document in recorded.meta(name)[0].values()]


@pytest.mark.parametrize("name", ["types", "ddl", "shop", "orphans"])
def test_all_jobs_give_exactly_the_stored_schema(name: str) -> None:
    _, schemas, infos = recorded.meta(name)
    history = SchemaHistory.from_jobs(reversed(jobs(name)))
    want = {i: Schema.from_tidb(d) for i, d in schemas.items()}
    assert history.schemas == want
    internal = 0xFFFFFFFFFFFF - 1000
    stored = {
        t: Table.from_tidb(d, s, want[s].name) for (s, t), d in infos.items() if t <= internal
    }
    assert history.tables == stored


def test_every_version_of_the_history_equals_stepping_there_and_effects_survive_json() -> None:
    stepped = SchemaHistory()
    for job in sorted(jobs("ddl"), key=lambda j: j.schema_version):
        effect = stepped.apply(job)
        assert DdlEffect.from_json(effect.to_json()) == effect
        if job.finished and job.schema_version > 80:
            built = SchemaHistory.from_jobs(jobs("ddl"), job.schema_version)
            assert (built.schemas, built.tables) == (stepped.schemas, stepped.tables)
            assert built.schema_version == stepped.schema_version == job.schema_version


def test_recorded_renames_exchange_truncate_and_drop() -> None:
    by_version = {j.schema_version: j for j in jobs("ddl")}
    history = SchemaHistory.from_jobs(jobs("ddl"), 84)

    truncate = history.apply(by_version[85])
    assert truncate.tables[99] is None
    assert truncate.tables[101] is not None
    assert 99 in history.truncated
    assert 101 not in history.truncated

    rename = history.apply(by_version[86])  # goods to g2, tmp_a to goods
    assert {i: t and t.full_name for i, t in rename.tables.items()} == {
        86: "shop.g2",
        101: "shop.goods",
    }

    history = SchemaHistory.from_jobs(jobs("ddl"), 87)
    across = history.apply(by_version[88])  # rename table shop.g2 to other.g2
    assert across.tables[86] is not None
    assert across.tables[86].full_name == "other.g2"

    history = SchemaHistory.from_jobs(jobs("ddl"), 101)
    exchange = history.apply(by_version[103])
    assert exchange.tables[120] is None
    moved = exchange.tables[115]
    assert moved is not None
    assert moved.name == "px"
    partitioned = exchange.tables[111]
    assert partitioned is not None
    assert 120 in {d["id"] for d in (partitioned.partition or {})["definitions"]}

    history = SchemaHistory.from_jobs(jobs("ddl"), 174)
    drop = history.apply(by_version[177])  # drop database other
    assert (drop.schemas, drop.tables) == ({104: None}, {86: None})


def document(number: int, kind: int, **more: Any) -> dict[str, Any]:
    binlog = {
        "SchemaVersion": number,
        "DBInfo": more.pop("db", None),
        "TableInfo": more.pop("table", None),
    }
    binlog["MultipleTableInfos"] = more.pop("tables", None)
    return {
        "id": 1000 + number,
        "type": kind,
        "state": 6,
        "schema_state": 5,
        "binlog": binlog,
        **more,
    }


def info(table_id: int, name: str, **more: Any) -> dict[str, Any]:
    return {"id": table_id, "name": {"O": name, "L": name.lower()}, "cols": [], "state": 5, **more}


def seeded() -> SchemaHistory:
    schemas = [Schema(2, "a"), Schema(3, "B")]
    tables = [Table(i, 2 if i < 20 else 3, "a" if i < 20 else "B", f"t{i}") for i in (10, 11, 20)]
    return SchemaHistory(schemas, tables, schema_version=5)


def apply(history: SchemaHistory, doc: dict[str, Any]) -> DdlEffect:
    return history.apply(DdlHistoryJob.from_json(doc))


@pytest.mark.parametrize(
    "text",
    [
        "rename table t10 to `b`.x, B.`t20` to t21",
        "/* x to y */ RENAME TABLE a.t10 TO b.`a#b--c`, b.t20 TO a.t21;",
        'rename table a."t10"TO"b".x,"b"."t 20"TO a.t21',
        "rename table`a`.`t10`to`b`.`to`,b.t20\nto\ta . t21 -- , c to d",
    ],
)
def test_rename_of_several_tables_across_schemas_without_arguments_follows_the_statement(
    text: str,
) -> None:
    history = seeded()
    effect = apply(
        history,
        document(
            6, 47, schema_id=3, table_id=20, query=text, tables=[info(10, "x"), info(20, "t21")]
        ),
    )
    assert {i: t and t.full_name for i, t in effect.tables.items()} == {10: "B.x", 20: "a.t21"}


def test_rename_of_several_tables_believes_the_arguments_first() -> None:
    history = seeded()
    args = [[2, 3], [3, 2], [], [10, 20]]
    doc = document(
        6,
        47,
        query="rename table t10 to x, t20 to y",
        raw_args=args,
        tables=[info(10, "x"), info(20, "y")],
    )
    assert {i: t and t.schema_id for i, t in apply(history, doc).tables.items()} == {10: 3, 20: 2}


def test_batch_creation_leaves_out_internal_tables() -> None:
    effect = apply(
        seeded(),
        document(
            6, 60, schema_id=2, tables=[info(30, "x"), info(0xFFFFFFFFFFFF - 5, "y"), info(31, "z")]
        ),
    )
    assert set(effect.tables) == {30, 31}


def test_replacing_a_view_removes_the_old_id() -> None:
    effect = apply(
        seeded(), document(6, 21, schema_id=2, table_id=40, table=info(40, "T10", view={}))
    )
    assert effect.tables[10] is None
    assert effect.tables[40] is not None
    assert effect.tables[40].is_view


def test_repartitioning_gives_the_table_a_new_id() -> None:
    history = seeded()
    effect = apply(
        history,
        document(6, 71, schema_id=2, table_id=10, table=info(50, "t10", partition={"type": 2})),
    )
    assert effect.tables[10] is None
    assert history.table(50) is not None
    assert 10 not in history.truncated


def test_a_recovered_schema_has_its_tables_again() -> None:
    history = seeded()
    before = dict(history.tables)
    apply(history, document(6, 2, schema_id=2, db={"id": 2, "db_name": "a"}))
    assert set(history.tables) == {20}
    effect = apply(
        history, document(7, 63, schema_id=2, db={"id": 2, "db_name": "a", "charset": None})
    )
    assert set(effect.tables) == {10, 11}
    assert history.tables == before


def test_the_extra_event_of_drop_column_marks_the_table_and_changes_nothing() -> None:
    history = seeded()
    doc = document(6, 6, schema_id=2, table_id=10, table=info(10, "t10"))
    early = DdlHistoryJob.from_json(doc, schema_state=1)
    assert history.apply(early) == DdlEffect()
    assert history.dropping_columns == {10}
    assert history.schema_version == 5
    assert set(history.apply(DdlHistoryJob.from_json(doc)).tables) == {10}
    assert history.dropping_columns == set()


@pytest.mark.parametrize(
    "change", [{"state": 3}, {"state": 5}, {"binlog": None}, {"binlog": {"SchemaVersion": 0}}]
)
def test_jobs_that_failed_change_nothing(change: dict[str, Any]) -> None:
    history = seeded()
    job = DdlHistoryJob.from_json(document(6, 4, schema_id=2, table_id=10) | change)
    assert history.apply(job) == DdlEffect()
    assert history.table(10) is not None


def test_a_job_that_is_not_newer_than_its_table_changes_nothing() -> None:
    history = seeded()
    jobs = [document(n, 17, schema_id=2, table_id=10, table=info(10, f"t{n}")) for n in (8, 8, 7)]
    assert [bool(apply(history, job).tables) for job in jobs] == [True, False, False]


def test_a_job_whose_version_is_below_that_of_another_tables_ddl_is_applied() -> None:
    """TiDB takes a multi-schema change's version in one transaction and writes its binlog in a
    later one.
    """
    history = seeded()
    apply(history, document(9, 3, schema_id=2, table_id=30, table=info(30, "other")))
    changed = apply(
        history, document(8, 61, schema_id=2, table_id=10, table=info(10, "t10", comment="new"))
    )
    assert changed.tables.keys() == {10}
    assert history.schema_version == 9


@pytest.mark.parametrize("kind", sorted(IGNORED_ACTIONS))
def test_ignored_types_move_the_version_only(kind: int) -> None:
    history = seeded()
    job = DdlHistoryJob.from_json(
        document(6, kind, schema_id=2, table_id=10, table=info(10, "other"))
    )
    assert history.apply(job) == DdlEffect()
    assert history.schema_version == 6


def test_a_job_without_its_table_names_itself() -> None:
    with pytest.raises(HistoryError, match=r"DDL job 1006 \(type 3.*TableInfo"):
        apply(seeded(), document(6, 3, schema_id=2, table_id=10, query="create table x(a int)"))
    with pytest.raises(HistoryError, match="unknown"):
        apply(seeded(), document(6, 42, schema_id=2, table_id=99, table=info(10, "t10")))


@pytest.mark.parametrize(
    ("location", "zone"),
    [
        ({"name": "UTC", "offset": 28800}, "+08:00"), ({"name": "UTC", "offset": -12600}, "-03:30"), ({"name": "UTC", "offset": 0}, "UTC"),  # noqa: E501
        ({"name": "Asia/Shanghai", "offset": 0}, "Asia/Shanghai"), ({"name": "Local", "offset": 0}, "Local"), ({"name": "System", "offset": 0}, "Local"),  # noqa: E501
        (None, ""),
    ],
)  # fmt: skip
def test_an_offset_is_the_zone_whatever_name_stands_beside_it(
    location: dict[str, Any] | None, zone: str
) -> None:
    """TiDB's GetTimeZone gives a zone that has no name the name UTC, and a zone with a name the
    offset 0.
    """
    assert (
        DdlHistoryJob.from_json(document(1, 12, reorg_meta={"location": location})).time_zone
        == zone
    )


class Watched(LiveTables):
    """Counts how often somebody looks at everything in it."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        type(self).looks += 1
        return super().__iter__()


def test_one_table_more_costs_the_same_however_many_there_are() -> None:
    history = seeded()
    watched = Watched()
    watched.update(history.tables)
    history.tables = watched
    for n in range(1, 50):
        apply(
            history,
            document(10 + n, 3, schema_id=2, table_id=100 + n, table=info(100 + n, f"n{n}")),
        )
    apply(history, document(70, 21, schema_id=2, table_id=200, table=info(200, "n7", view={})))
    effect = apply(history, document(71, 2, schema_id=3, table_id=0))
    assert Watched.looks == 0
    assert history.table(107) is None
    assert set(effect.tables) == {20}
    assert len(history.tables) == 51


def test_every_job_type_has_the_name_that_tidb_gives_it_and_others_are_told_by_number():
    assert action_name(Action.PARTITION_TABLE) == "alter table partition by"
    assert len({action.title for action in Action}) == len(Action)
    assert action_name(999) == "type 999"
