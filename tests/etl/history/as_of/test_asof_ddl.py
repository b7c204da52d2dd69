"""What DDL makes of rows, and what is refused by name because nothing tells it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.etl.history.as_of import AsOfError
from sluice.relay import DELETE, INSERT, PART_SCHEMA, RelayLog, WindowRecord
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlEffect, DdlJob
from sluice.tidb.rows import ROWID_NAME, encode_delete, encode_insert
from sluice.tidb.schema import Table
from tests.etl.history.as_of.asking import plain, rows_as_of
from tests.etl.story import column, table

BEGIN = 470_000_000_000_000_000
_PARTITIONS = {
    "type": 1, "expr": "`p`", "enable": True, "num": 2,
    "definitions": [
        {"id": 900, "name": {"O": "p0", "L": "p0"}, "less_than": ["10"]},
        {"id": 901, "name": {"O": "p1", "L": "p1"}, "less_than": ["20"]},
    ],
}  # fmt: skip


@dataclass
class Past:
    """A log in which each event is a window."""

    log: RelayLog
    tables: dict[int, Table] = field(default_factory=dict)
    ts: int = BEGIN

    def rows(self, table: Table, *rows: dict[str, Any], kind: int = INSERT) -> int:
        encode = encode_insert if kind == INSERT else encode_delete
        columns = [
            [self.ts + 5] * len(rows),
            [self.ts + 4] * len(rows),
            list(range(len(rows))),
            [table.id] * len(rows),
            [1] * len(rows),
            [kind] * len(rows),
            [encode(table, {ROWID_NAME: n} | row) for n, row in enumerate(rows, 1)],
        ]
        arrays = [
            pa.array(values, kind.type) for values, kind in zip(columns, PART_SCHEMA, strict=True)
        ]
        part = self.log.write_part(
            self.ts, self.ts + 10, "t", 0, [pa.RecordBatch.from_arrays(arrays, schema=PART_SCHEMA)]
        )
        assert part is not None
        tables = {str(table.id): self.tables[table.id].to_json()} if table.id in self.tables else {}
        return self._land(parts=(part,), tables=tables, changes=len(rows))

    def ddl(self, kind: int, query: str, tables: dict[int, Table | None], **more: Any) -> int:
        job = DdlJob(
            self.ts + 5,
            self.ts + 4,
            77,
            0,
            query,
            int(kind),
            2,
            "d",
            "t",
            DdlEffect({}, tables),
            **more,
        )
        before = {str(i): self.tables[i].to_json() for i in tables if i in self.tables}
        self.tables |= {i: t for i, t in tables.items() if t is not None}
        for gone in [i for i, t in tables.items() if t is None]:
            self.tables.pop(gone, None)
        return self._land(ddls=(job.to_json(),), tables=before)

    def create(self, made: Table) -> Table:
        self.ddl(Action.CREATE_TABLE, f"CREATE TABLE {made.name}", {made.id: made})
        return made

    def alter(self, made: Table, query: str, kind: int = Action.MODIFY_COLUMN, **more: Any) -> int:
        return self.ddl(kind, query, {made.id: made}, **more)

    def _land(self, **what: Any) -> int:
        lo, self.ts = self.ts, self.ts + 10
        self.log.commit(WindowRecord(lo, self.ts, 7, "t", 0, 1, what.pop("changes", 0), 1, **what))
        return self.ts

    def at(self, name: str = "d.t", ts: int | None = None) -> list[tuple[Any, ...]]:
        return plain(rows_as_of(self.log, ts or self.ts, [name])[name])


@pytest.fixture
def past(tmp_path: Path) -> Past:
    return Past(RelayLog.open(tmp_path.as_uri()))


def with_columns(snapshot: Table, specs: Iterable[Any]) -> Table:
    return replace(snapshot, columns=tuple(replace(one, offset=n) for n, one in enumerate(specs)))


def test_columns_come_go_and_change_their_type_with_the_rows_that_are_there(past: Past) -> None:
    first = past.create(table(10, "t", "id int", "v int", "old varchar(9)", primary="id"))
    past.rows(first, {"id": 1, "v": 7, "old": "x"}, {"id": 2, "v": None, "old": "y"})
    before = past.ts
    id_ = first.columns[0]
    text = column(5, "v varchar(9)")
    added = column(6, "n decimal(6,2) not null", origin_default="1.5")
    past.alter(
        with_columns(first, (id_, text, added)),
        "ALTER TABLE t ...",
        Action.MULTI_SCHEMA_CHANGE,
        sql_mode=0,
    )
    assert past.at() == [(1, b"7".decode(), "1.50"), (2, None, "1.50")]
    assert past.at(ts=before) == [(1, 7, "x"), (2, None, "y")]


def test_a_time_with_more_digits_of_a_second_is_the_same_time(past: Past) -> None:
    first = past.create(table(10, "t", "id int", "at datetime", primary="id"))
    past.rows(first, {"id": 1, "at": "2024-01-01 10:00:00"}, {"id": 2, "at": None})
    past.alter(
        with_columns(first, (first.columns[0], column(2, "at datetime(3)"))),
        "ALTER TABLE t MODIFY at datetime(3)",
    )
    assert past.at() == [(1, "2024-01-01 10:00:00.000"), (2, None)]


def test_a_table_that_is_truncated_dropped_renamed_and_recovered_keeps_what_it_should(
    past: Past,
) -> None:
    first = past.create(table(10, "t", "id int", primary="id"))
    past.rows(first, {"id": 1})
    renamed = replace(first, name="u")
    past.ddl(Action.RENAME_TABLE, "RENAME TABLE t TO u", {10: renamed})
    past.rows(renamed, {"id": 2})
    dropped = past.ddl(Action.DROP_TABLE, "DROP TABLE u", {10: None})
    with pytest.raises(AsOfError, match=r"no table d\.u at .*`DROP TABLE u`"):
        past.at("d.u", dropped)
    past.ddl(Action.RECOVER_TABLE, "RECOVER TABLE u", {10: renamed})
    assert past.at("d.u") == [(1,), (2,)]
    past.ddl(Action.TRUNCATE_TABLE, "TRUNCATE TABLE u", {10: None, 11: replace(renamed, id=11)})
    assert past.at("d.u") == []


def test_a_keyless_table_keeps_as_many_of_equal_rows_as_are_left_while_a_column_is_dropped(
    past: Past,
) -> None:
    first = past.create(table(10, "t", "a int", "b int"))
    past.rows(first, *({"a": 1, "b": 2} for _ in range(3)), {"a": 1, "b": 3})
    narrow = with_columns(first, first.columns[:1])
    # by a session that doesn't see the column any more
    past.rows(narrow, {"a": 1}, {"a": 1}, kind=DELETE)
    past.alter(narrow, "ALTER TABLE t DROP COLUMN b", Action.DROP_COLUMN)
    assert past.at() == [(1,), (1,)]


def _refused(past: Past, what: str, name: str = "d.t") -> None:
    with pytest.raises(AsOfError, match=what) as refused:
        past.at(name)
    assert "snapshot" in refused.value.hint


def test_a_value_that_tidb_converted_by_rules_that_arent_known_is_refused(past: Past) -> None:
    first = past.create(table(10, "t", "id int", "v json", primary="id"))
    past.rows(first, {"id": 1, "v": '"2020"'})
    new = with_columns(first, (first.columns[0], column(5, "v tinyint")))
    past.alter(new, "ALTER TABLE t MODIFY v tinyint", sql_mode=0)
    _refused(past, r"MODIFY v tinyint`, changed the type of d\.t\.v: the value")


def test_null_that_became_something_by_the_upstreams_mode_is_refused(past: Past) -> None:
    first = past.create(table(10, "t", "id int", "v int", primary="id"))
    past.rows(first, {"id": 1, "v": None})
    past.alter(
        with_columns(first, (first.columns[0], column(5, "v bigint not null"))),
        "ALTER TABLE t MODIFY v bigint",
    )
    _refused(past, r"d\.t\.v held NULL")


def test_what_comes_after_flashback_cluster_is_refused(past: Past) -> None:
    past.create(table(10, "t", "id int", primary="id"))
    past.ddl(Action.FLASHBACK_CLUSTER, "FLASHBACK CLUSTER TO TIMESTAMP ...", {})
    _refused(past, "took the whole cluster back")


def test_a_ddl_of_an_unknown_kind_is_refused_for_the_tables_it_touches_alone(past: Past) -> None:
    first = past.create(table(10, "t", "id int", primary="id"))
    other = past.create(table(11, "o", "id int", primary="id"))
    past.rows(other, {"id": 5})
    past.ddl(250, "ALTER TABLE t SOMETHING NEW", {first.id: first})
    _refused(past, r"`ALTER TABLE t SOMETHING NEW`, is of type 250, .* rows of d\.t")
    assert past.at("d.o") == [(5,)]


def test_a_table_that_was_there_before_everything_is_refused_without_a_snapshot(past: Past) -> None:
    first = table(10, "t", "id int", primary="id")
    past.tables[10] = first
    past.rows(first, {"id": 1})
    _refused(past, r"d\.t \(id 10\) was there before")


def test_partitions_that_cant_be_told_after_an_exchange_without_validation_are_refused(
    past: Past,
) -> None:
    whole = past.create(table(10, "t", "p int", partition=_PARTITIONS))
    alone = past.create(table(11, "u", "p int"))
    past.rows(alone, {"p": 15})
    first, second = _PARTITIONS["definitions"]  # type: ignore[misc]
    after = replace(whole, partition=_PARTITIONS | {"definitions": [first | {"id": 11}, second]})
    past.ddl(
        Action.EXCHANGE_PARTITION,
        "ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE u WITHOUT VALIDATION",
        {10: after, 11: None, 900: replace(alone, id=900)},
        versions=(1, 2),
        began_ts=past.ts,
        finished_ts=past.ts + 5,
    )
    assert past.at() == [(15,)]
    assert past.at("d.u") == []
    left = replace(after, partition=_PARTITIONS | {"definitions": [second]})
    past.ddl(
        Action.DROP_PARTITION,
        "ALTER TABLE t DROP PARTITION p0",
        {10: left},
        versions=(3,),
        began_ts=past.ts,
    )
    _refused(past, r"DROP PARTITION p0`: an EXCHANGE PARTITION before it put rows into d\.t")


def test_what_becomes_of_a_table_after_it_gave_its_rows_to_a_wanted_one_is_not_asked(
    past: Past,
) -> None:
    whole = past.create(table(10, "t", "p int", "v date", partition=_PARTITIONS))
    alone = past.create(table(11, "u", "p int", "v date"))
    past.rows(whole, {"p": 2, "v": "2020-01-02"})
    past.rows(alone, {"p": 5, "v": "2020-01-05"})
    first, second = _PARTITIONS["definitions"]  # type: ignore[misc]
    after = replace(whole, partition=_PARTITIONS | {"definitions": [first | {"id": 11}, second]})
    exchanged = replace(alone, id=900)
    past.ddl(
        Action.EXCHANGE_PARTITION,
        "ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE u",
        {10: after, 11: None, 900: exchanged},
        versions=(1, 1),
        began_ts=past.ts,
        finished_ts=past.ts + 5,
        asked=True,
    )
    past.rows(exchanged, {"p": 3, "v": "2020-01-03"})
    altered = with_columns(exchanged, (exchanged.columns[0], column(3, "v datetime")))
    past.alter(altered, "ALTER TABLE u MODIFY v datetime")
    past.rows(altered, {"p": 3, "v": "2020-01-03 00:00:00"}, kind=DELETE)
    past.ddl(Action.DROP_TABLE, "DROP TABLE u", {900: None})
    past.rows(after, {"p": 6, "v": "2020-01-06"})
    assert past.at() == [(5, "2020-01-05"), (6, "2020-01-06")]


def test_a_moment_before_the_log_begins_is_refused_with_the_earliest_one(past: Past) -> None:
    past.create(table(10, "t", "id int", primary="id"))
    with pytest.raises(
        AsOfError, match=r"lies before .* begins, and there is no snapshot"
    ) as refused:
        past.at(ts=BEGIN - 5)
    assert f"from {BEGIN} (" in refused.value.hint and "the earliest" in refused.value.hint
