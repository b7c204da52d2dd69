"""DDL whose schema versions and binlogs differ in order, and jobs that changed nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from sluice.etl.landing._job import TableSpan
from sluice.etl.landing._tables_without_ddl import UnknownTableError
from sluice.etl.landing._window_rows import WindowRows
from sluice.etl.landing.extract import DdlRecord
from sluice.etl.landing.schema import LandingSchema
from sluice.etl.landing.schema_rebuild import SchemaRebuilder, late_jobs
from sluice.tidb import PDClient, TiKVClient, TiKVError
from sluice.tidb.job import HistoryError
from sluice.tidb.tikv.meta import hash_field_key, hash_prefix, string_key
from tests.etl.landing.test_schema_then import History


class Clock:
    """A PD whose time stands still."""

    def tso(self) -> int:
        return 1 << 60


def info(number: int, name: str, *columns: str) -> dict[str, Any]:
    cols = [
        {
            "id": n,
            "name": {"O": c, "L": c},
            "offset": n - 1,
            "type": {"Tp": 3, "Flen": 11},
            "state": 5,
        }
        for n, c in enumerate(columns, 1)
    ]
    return {"id": number, "name": {"O": name, "L": name}, "cols": cols, "state": 5}


def document(
    number: int, kind: int, version: int, table: dict[str, Any] | None, **more: Any
) -> dict[str, Any]:
    binlog = {"SchemaVersion": version, "TableInfo": table, "FinishedTS": number * 10 + 1, **more}
    table_id = table["id"] if table else 0
    return {
        "id": number,
        "type": kind,
        "state": 6,
        "schema_id": 2,
        "table_id": table_id,
        "binlog": binlog,
    }


_SCHEMA = {
    "id": 2,
    "db_name": {"O": "d", "L": "d"},
    "charset": "utf8mb4",
    "collate": "utf8mb4_bin",
    "state": 5,
}
_JOBS = [
    document(10, 1, 5, None, DBInfo=_SCHEMA),
    document(11, 3, 6, info(30, "t", "a")),
    document(13, 61, 8, info(30, "t", "a", "b", "c")),
    document(12, 3, 9, info(31, "other", "a")),
    {**document(14, 5, 0, None), "table_id": 30},
]


class Meta(History):
    """The history, and table 30 with its new columns from 120 on.

    What was before `collected` can't be read.
    """

    def __init__(
        self, collected: int = 0, jobs: list[dict[str, Any]] = _JOBS, *, is_gone: bool = False
    ) -> None:
        super().__init__(jobs)
        self._is_gone = is_gone
        self._collected = collected
        self._diffs = {
            string_key(f"Diff:{v}"): {"version": v, "table_id": 30, "type": 5} for v in (7, 8)
        }

    def get(self, key: bytes, ts: int) -> bytes | None:
        if key in self._diffs:
            return json.dumps(self._diffs[key]).encode()
        if key == hash_field_key("DB:2", b"Table:77"):
            return json.dumps(info(77, "restored", "a")).encode()
        if key == hash_field_key("DB:2", b"Table:30"):
            if ts < self._collected:
                raise TiKVError("GC life time is shorter than transaction duration")
            if self._is_gone:
                return None
            return json.dumps(
                info(30, "t", "a", "b", "c") if ts >= 120 else info(30, "t", "a")
            ).encode()
        return super().get(key, ts)

    def scan(
        self, start: bytes, end: bytes, ts: int, limit: int = 256, *, keys_only: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        if start == hash_prefix("DBs"):
            return iter([(b"", json.dumps(_SCHEMA).encode())])
        return super().scan(start, end, ts, limit, keys_only=keys_only)


def landing(
    version: int,
    collected: int = 0,
    *,
    has_landed: bool = False,
    jobs: list[dict[str, Any]] = _JOBS,
    is_gone: bool = False,
    landed: tuple[int, int] | None = None,
) -> LandingSchema:
    tikv = cast(TiKVClient, Meta(collected, jobs, is_gone=is_gone))
    then = SchemaRebuilder(tikv, 1 << 60, old_collations=False)
    is_late = (
        late_jobs(landed[0], lambda job_id, since_ts: has_landed or job_id != 13)
        if landed
        else None
    )
    history, known, _ = then.at_version(version, None, is_late, landed[1] if landed else 0)
    return LandingSchema(
        history,
        cast(PDClient, Clock()),
        tikv,
        None,
        known,
        lambda early: then.without(version, early),
        lambda job_id, since_ts: has_landed,
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


def test_landing_that_begins_between_the_two_has_rows_of_before_and_of_after_the_change() -> None:
    """The relay log's windows end behind DDL of a higher version, and before the change's rows and
    binlog.
    """
    rows = rows_of((6, 122), (8, 125))
    found = landing(9, landed=(50, 121)).resolve(
        [], {30: TableSpan(2, 122, 125, 6, 8)}, lambda seconds: False, (), rows
    )
    assert [(ddl.job_id, ddl.commit_ts) for ddl in found.ddls] == [(13, 124)]
    assert columns(found.tables[30], 30) == ["a"]


@pytest.mark.parametrize(("landed", "has_landed"), [((50, 121), True), ((131, 140), False)])
def test_landing_that_begins_behind_a_change_has_it(
    landed: tuple[int, int], has_landed: bool
) -> None:
    """A window named it before its binlog, or it came before the relay log began."""
    found = landing(9, landed=landed, has_landed=has_landed).resolve(
        [], {30: TableSpan(1, 145, 145, 8, 8)}, lambda seconds: False
    )
    assert found.ddls == () and columns(found.tables[30], 30) == ["a", "b", "c"]


def test_ddl_since_the_beginning_stays_when_a_change_is_taken_back() -> None:
    schema = landing(9)
    schema.resolve([record(14)], {}, lambda seconds: False)
    schema.resolve([record(13)], {}, lambda seconds: False)
    assert schema.resolve([record(12)], {}, lambda seconds: False).schema_version == 9


def test_a_job_that_succeeded_and_changed_nothing_is_not_landed_as_ddl() -> None:
    """Two sessions race ADD COLUMN IF NOT EXISTS: the second job has no schema version."""
    assert landing(9).resolve([record(14)], {}, lambda seconds: False).ddls == ()


def rows_of(*rows: tuple[int, int], others: Sequence[int] = ()) -> WindowRows:
    """Rows of table 30, (schema version, commit_ts) each, and commit_ts of transactions in another
    table.
    """
    everything = sorted(
        [(ts, version, 30) for version, ts in rows] + [(ts, 0, 99) for ts in others]
    )
    commits, versions, tables = (list(column) for column in zip(*everything, strict=True))
    batch = pa.record_batch({"commit_ts": commits, "schema_version": versions, "table_id": tables})
    return WindowRows(lambda: [batch])


_ROWS = [(6, 90), (7, 110), (8, 125)]
"""Schema version and first commit_ts of a window's rows. The change's binlog comes at 130."""


@pytest.mark.parametrize("collected", [0, 1 << 59])
def test_a_change_is_landed_right_before_the_first_row_that_knows_its_columns(
    collected: int,
) -> None:
    span = TableSpan(3, 90, 125, 6, 8)
    found = landing(6, collected).resolve(
        [record(13)], {30: span}, lambda seconds: False, (), rows_of(*_ROWS)
    )
    assert [(ddl.job_id, ddl.commit_ts) for ddl in found.ddls] == [(13, 124)]
    assert columns(found.ddls[0].effect.tables[30], 30) == ["a", "b", "c"]


@pytest.mark.parametrize("collected", [0, 1 << 59])
def test_rows_know_a_change_before_its_binlog_in_the_window_that_makes_their_table(
    collected: int,
) -> None:
    span = TableSpan(2, 115, 125, 6, 8)
    found = landing(5, collected).resolve(
        [record(11), record(13)], {30: span}, lambda seconds: False, (), rows_of((6, 115), (8, 125))
    )
    assert [(ddl.job_id, ddl.commit_ts) for ddl in found.ddls] == [(11, 110), (13, 124)]
    assert columns(found.ddls[1].effect.tables[30], 30) == ["a", "b", "c"]


def test_rows_know_a_change_before_its_binlog_in_the_window_that_exchanges_their_table() -> None:
    """The job's document has the partitioned table; the ordinary one has a new id, 30, by it."""

    def partitioned(partition_id: int) -> dict[str, Any]:
        one = {"id": partition_id, "name": {"O": "p0", "L": "p0"}}
        return info(40, "p", "a") | {
            "partition": {"type": 1, "enable": True, "expr": "`a`", "definitions": [one]}
        }

    exchange = document(12, 42, 7, partitioned(50)) | {"table_id": 50}
    jobs = [
        document(10, 1, 4, None, DBInfo=_SCHEMA),
        document(9, 3, 5, info(50, "t", "a")),
        document(11, 3, 6, partitioned(30)),
        exchange,
        next(job for job in _JOBS if job["id"] == 13),
    ]
    found = landing(6, jobs=jobs).resolve(
        [record(12), record(13)],
        {30: TableSpan(1, 125, 125, 8, 8)},
        lambda seconds: False,
        (),
        rows_of((8, 125)),
    )
    assert [(ddl.job_id, ddl.commit_ts) for ddl in found.ddls] == [(12, 120), (13, 124)]
    assert columns(found.ddls[1].effect.tables[30], 30) == ["a", "b", "c"]


def test_a_captured_row_behind_an_exchange_is_looked_at_though_it_knows_the_newest_version() -> (
    None
):
    """A capture names the newest version, and the table that is a partition by now: 50."""
    one = {"id": 30, "name": {"O": "p0", "L": "p0"}}
    before, after = (
        info(40, "p", "a")
        | {"partition": {"type": 1, "enable": True, "definitions": [one | {"id": partition_id}]}}
        for partition_id in (30, 50)
    )
    jobs = [
        document(10, 1, 4, None, DBInfo=_SCHEMA),
        document(9, 3, 5, info(50, "t", "a")),
        document(11, 3, 6, before),
        document(12, 42, 7, after) | {"table_id": 50},
    ]
    own = landing(6, jobs=jobs)
    own.resolve([record(12)], {}, lambda seconds: False, (), rows_of((7, 125)))
    spans = {50: TableSpan(1, 125, 125, 7, 7)}
    found = own.resolve([], spans, lambda seconds: False, (), rows_of((7, 125)))
    assert found.moved and [move.job_id for move in own.recent_moves(found, spans)] == [12]


def test_rows_know_a_change_before_its_binlog_also_behind_ddl_that_adds_no_column() -> None:
    """TiKV has collected what the table was at the first row, which knows neither of them."""
    renamed = document(12, 14, 7, info(30, "t", "a"))
    jobs = [job for job in _JOBS if job["id"] != 12] + [renamed]
    found = landing(6, 1 << 59, jobs=jobs).resolve(
        [record(12), record(13)],
        {30: TableSpan(2, 115, 125, 7, 8)},
        lambda seconds: False,
        (),
        rows_of((7, 115), (8, 125)),
    )
    assert [(ddl.job_id, ddl.commit_ts) for ddl in found.ddls] == [(12, 120), (13, 124)]


def test_a_change_that_rows_know_gets_a_timestamp_that_no_transaction_has() -> None:
    """Applying commits rows and DDL of one commit_ts apart, and goes on behind it after a crash."""
    span = TableSpan(2, 110, 125, 7, 8)
    rows = rows_of((7, 110), (8, 125), others=[122, 123, 124])
    found = landing(6).resolve([record(13)], {30: span}, lambda seconds: False, (), rows)
    assert [ddl.commit_ts for ddl in found.ddls] == [121]


def test_rows_of_before_are_never_behind_a_change_of_their_columns() -> None:
    changed = [
        job if job["id"] != 13 else document(13, 61, 8, info(30, "t", "b", "c")) for job in _JOBS
    ]
    span, rows = TableSpan(2, 124, 125, 7, 8), rows_of((7, 124), (8, 125))
    with pytest.raises(HistoryError, match="between rows at commit_ts 124 and 125"):
        landing(6, 1 << 59, jobs=changed).resolve(
            [record(13)], {30: span}, lambda seconds: False, (), rows
        )


@pytest.mark.parametrize(
    "gone", [document(15, 4, 10, info(30, "t", "a")), document(15, 2, 10, None)]
)
def test_rows_of_a_table_that_is_gone_by_now_wait_for_no_change(gone: dict[str, Any]) -> None:
    """TiKV has collected what the table was, and its end may be a job that names no table (DROP
    DATABASE).
    """

    def waits(seconds: float) -> bool:
        raise AssertionError("landing waits")

    jobs = [job for job in _JOBS if job["id"] != 13] + [gone]
    found = landing(6, 1 << 59, jobs=jobs, is_gone=True).resolve(
        [], {30: TableSpan(1, 125, 126, 8, 8)}, waits
    )
    assert found.ddls == ()


@pytest.mark.parametrize("collected", [0, 1 << 59])
def test_a_change_is_found_behind_jobs_that_name_another_table(collected: int) -> None:
    """RENAME TABLE of several tables is a job of one of them."""
    of_two = document(
        12, 47, 7, None, MultipleTableInfos=[info(31, "other", "a"), info(30, "t", "a")]
    )
    jobs = [
        document(9, 3, 4, info(31, "o", "a")),
        *(job for job in _JOBS if job["id"] != 12),
        of_two | {"table_id": 31},
    ]
    span, rows = TableSpan(1, 125, 126, 8, 8), rows_of((8, 125))
    found = landing(6, collected, jobs=jobs).resolve(
        [record(12)], {30: span}, lambda seconds: False, (), rows
    )
    assert [(ddl.job_id, ddl.commit_ts) for ddl in found.ddls] == [(12, 120), (13, 124)]


def test_a_change_is_found_for_rows_of_long_ago_although_its_columns_are_gone_by_now() -> None:
    """TiKV has collected what the table was, and DDL since has removed the columns."""
    jobs = [*_JOBS, document(16, 6, 20, info(30, "t", "a"))]
    span, rows = TableSpan(1, 125, 125, 8, 8), rows_of((8, 125))
    schema = landing(6, 1 << 59, jobs=jobs, is_gone=True)
    found = schema.resolve([record(13)], {30: span}, lambda seconds: False, (), rows)
    assert [(ddl.job_id, ddl.commit_ts) for ddl in found.ddls] == [(13, 124)]


def test_rows_between_the_two_binlogs_of_a_dropped_column_bring_nothing_forward() -> None:
    """TiKV still has the column there. The next change is known behind its own binlog only."""
    jobs = [
        *(job for job in _JOBS if job["id"] not in (12, 13)),
        document(12, 6, 7, info(30, "t")),
        document(13, 5, 8, info(30, "t", "a", "b", "c")),
    ]
    begun = DdlRecord(112, 111, 12, 1, "ALTER TABLE t DROP COLUMN a")
    span, rows = TableSpan(2, 115, 140, 7, 8), rows_of((7, 115), (8, 140))
    found = landing(6, jobs=jobs).resolve(
        [begun, record(12), record(13)], {30: span}, lambda seconds: True, (), rows
    )
    assert [(ddl.job_id, ddl.commit_ts) for ddl in found.ddls if ddl.effect.tables] == [
        (12, 120),
        (13, 130),
    ]


def test_the_binlog_of_a_change_that_rows_brought_forward_is_no_change_also_behind_a_restart() -> (
    None
):
    schema = landing(6)
    found = schema.resolve([], {30: TableSpan(1, 125, 126, 8, 8)}, lambda seconds: False)
    assert [(ddl.job_id, ddl.commit_ts) for ddl in found.ddls] == [(13, 124)]
    assert schema.resolve([record(13)], {}, lambda seconds: False).ddls == ()
    assert landing(9, has_landed=True).resolve([record(13)], {}, lambda seconds: False).ddls == ()


def test_rows_that_know_a_change_under_way_but_not_its_columns_wait_for_nothing() -> None:
    found = landing(6).resolve([], {30: TableSpan(1, 110, 111, 7, 7)}, lambda seconds: True)
    assert found.ddls == ()


def test_a_table_that_no_job_made_is_created_before_its_first_row_as_tikv_has_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schema = landing(9)
    span = TableSpan(1, 300, 310, 9, 9)
    (made,) = schema.resolve([], {77: span}, lambda seconds: False).ddls
    assert (made.commit_ts, made.type) == (299, 3)
    assert columns(made.effect.tables[77], 77) == ["a"]
    assert "sluice backfill --table d.restored" in caplog.text
    assert columns(schema.resolve([], {77: span}, lambda seconds: False).tables[77], 77) == ["a"]
    with pytest.raises(UnknownTableError):
        schema.resolve([], {78: span}, lambda seconds: False)


def test_the_same_question_reads_the_rows_of_a_window_once() -> None:
    readings = []

    def batches() -> Iterator[pa.RecordBatch]:
        readings.append(1)
        yield pa.record_batch({"table_id": [30, 99, 30], "commit_ts": [5, 6, 7]})

    rows = WindowRows(batches)
    for _ in range(2):
        assert rows.commits() == {5, 6, 7}
        assert rows.commits(30) == {5, 7} and rows.commits(99) == {6}
    assert len(readings) == 3
