"""DDL whose schema versions and binlogs are not in the same order, and jobs that changed nothing."""

from __future__ import annotations

from typing import Any, cast

from etl.explode import DdlRecord
from etl.landing._schema_then import SchemaThen
from etl.landing.schema import LandingSchema
from tests.etl.landing.test_schema_then import History
from upstream import PDClient, TiKVClient


class Clock:
    """A PD whose time stands still."""

    def tso(self) -> int:
        return 1 << 60


def info(number: int, name: str, *columns: str) -> dict[str, Any]:
    cols = [
        {"id": n, "name": {"O": c, "L": c}, "offset": n - 1, "type": {"Tp": 3, "Flen": 11}, "state": 5}
        for n, c in enumerate(columns, 1)
    ]
    return {"id": number, "name": {"O": name, "L": name}, "cols": cols, "state": 5}


def document(number: int, kind: int, version: int, table: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    binlog = {"SchemaVersion": version, "TableInfo": table, "FinishedTS": number * 10 + 1, **more}
    table_id = table["id"] if table else 0
    return {"id": number, "type": kind, "state": 6, "schema_id": 2, "table_id": table_id, "binlog": binlog}


_SCHEMA = {"id": 2, "db_name": {"O": "d", "L": "d"}, "charset": "utf8mb4", "collate": "utf8mb4_bin", "state": 5}
_JOBS = [
    document(10, 1, 5, None, DBInfo=_SCHEMA),
    document(11, 3, 6, info(30, "t", "a")),
    document(13, 61, 8, info(30, "t", "a", "b", "c")),
    document(12, 3, 9, info(31, "other", "a")),
    {**document(14, 5, 0, None), "table_id": 30},
]


def landing(version: int) -> LandingSchema:
    tikv = cast(TiKVClient, History(_JOBS))
    then = SchemaThen(tikv, 1 << 60, old_collations=False)
    history, known = then.at(version)
    return LandingSchema(
        history, cast(PDClient, Clock()), tikv, None, known, lambda early: then.without(version, early)
    )


def record(job_id: int) -> DdlRecord:
    return DdlRecord(job_id * 10, job_id * 10 - 1, job_id, 5, "ALTER TABLE t")


def columns(schema: Any, table_id: int) -> list[str]:
    return [column.name for column in schema.columns] if schema is not None else []


def test_a_multi_schema_change_is_landed_behind_ddl_of_a_higher_version() -> None:
    found = landing(6).resolve([record(12), record(13)], {}, lambda seconds: False)
    assert [ddl.job_id for ddl in found.ddls] == [12, 13]
    assert columns(found.tables[30], 30) == ["a"]
    assert columns(found.ddls[1].effect.tables[30], 30) == ["a", "b", "c"]
    assert found.schema_version == 9


def test_landing_that_begins_between_the_version_and_the_binlog_of_a_change_lands_it() -> None:
    found = landing(9).resolve([record(13)], {}, lambda seconds: False)
    assert columns(found.tables[30], 30) == ["a"]
    assert columns(found.ddls[0].effect.tables[30], 30) == ["a", "b", "c"]


def test_ddl_since_the_beginning_stays_when_a_change_is_taken_back() -> None:
    schema = landing(9)
    schema.resolve([record(14)], {}, lambda seconds: False)
    schema.resolve([record(13)], {}, lambda seconds: False)
    assert schema.resolve([record(12)], {}, lambda seconds: False).schema_version == 9


def test_a_job_that_succeeded_and_changed_nothing_is_not_landed_as_ddl() -> None:
    """Two sessions race ADD COLUMN IF NOT EXISTS: the second job succeeds without a schema version."""
    assert landing(9).resolve([record(14)], {}, lambda seconds: False).ddls == ()
