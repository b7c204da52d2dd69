"""Rows around partition DDL get the definition version that TiKV shows they were written by."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.landing._kept_versions import LandingSafePoint
from sluice.etl.landing.definitions_used import DefinitionResolver, DefinitionUnknownError
from sluice.relay import PART_SCHEMA, Part, RelayLog, WindowRecord
from sluice.tidb import PDClient
from sluice.tidb.codec.memcomparable import encode_int
from sluice.tidb.codec.row import ROWID_NAME, encode_delete, encode_insert, encode_update
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlEffect, DdlJob, FinishedRowMove
from sluice.tidb.pd import PDError
from sluice.tidb.record_keys import record_key
from sluice.tidb.schema import Column, Index, Table
from sluice.tidb.tikv import Mvcc, MvccLock, MvccWrite

LO = 1_000
TRUNCATE_TS = 2_000
PUT, DELETE_KEY, LOCK, ROLLBACK = range(4)


def table(*partitions: int, collate: str = "") -> Table:
    """`t`, p below 10 in the first partition, below 20 in the second.

    With `collate` a clustered key of text.
    """
    definitions = [
        {"id": pid, "name": {"O": f"p{n}", "L": f"p{n}"}, "less_than": [str(10 * n + 10)]}
        for n, pid in enumerate(partitions)
    ]
    partition = {
        "type": 1,
        "expr": "`p`",
        "enable": True,
        "num": len(definitions),
        "definitions": definitions,
    }
    columns = (Column(1, "p", 0, 3), Column(2, "v", 1, 3))
    if collate:
        columns = (*columns, Column(3, "s", 2, 15, 3, charset="utf8mb4", collate=collate))
        key = Index(1, "PRIMARY", (("s", 2, -1),), unique=True, primary=True)
        return Table(100, 1, "d", "t", columns, (key,), partition=partition, is_common_handle=True)
    return Table(100, 1, "d", "t", columns, partition=partition)


BEFORE, AFTER = table(201, 202), table(301, 202)


def truncate(before: Table = BEFORE, after: Table = AFTER) -> FinishedRowMove:
    return FinishedRowMove(
        Action.TRUNCATE_PARTITION,
        7,
        TRUNCATE_TS - 100,
        TRUNCATE_TS + 50,
        60,
        (60,),
        {100: before},
        DdlEffect({}, {100: after}),
    )


class TiKV:
    """Keys with their writes; a key of a row by partition and hidden row id."""

    def __init__(self) -> None:
        self.keys: dict[bytes, Mvcc] = {}
        self.asked = 0

    def put(
        self, partition: int, rowid: int, *writes: MvccWrite, lock: MvccLock | None = None
    ) -> None:
        self.keys[record_key(partition, encode_int(rowid))] = Mvcc(lock, writes)

    def ask(self, keys: Collection[bytes]) -> Mapping[bytes, Mvcc]:
        self.asked += len(keys)
        return {key: self.keys.get(key, Mvcc(None, ())) for key in keys}


class Landing:
    """A window (LO, 5000] with changes and the TRUNCATE of p0 in it; what comes of it."""

    def __init__(self, folder: Path) -> None:
        self.relay = RelayLog.open(f"file://{folder}")
        self.tikv, self.safe_point = TiKV(), 0
        self.move = truncate()
        self.is_captured = False
        self.later: tuple[DdlJob, ...] = ()

    def versions(
        self, *changes: tuple[int, int, int, int, bytes], skips: Collection[int] = ()
    ) -> list[int]:
        """The version of each of some changes (commit_ts, start_ts, version, kind, row) when it has
        landed.
        """
        rows = [
            (commit_ts, start_ts, n, 100, version, kind, row)
            for n, (commit_ts, start_ts, version, kind, row) in enumerate(changes)
        ]
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(column, field.type)
                for column, field in zip(zip(*rows, strict=True), PART_SCHEMA)
            ],
            schema=PART_SCHEMA,
        )
        part = self.relay.write_part(LO, 5_000, "t", 0, [batch])
        assert part is not None
        schema, parts = self.settle((part,), skips)
        assert schema.ddls[0].asked
        window = schema.write_to(WindowRecord(LO, 5_000, 7, "t", 0, 1, len(rows), 60, parts))
        assert RecordedSchema.from_window(window) == schema, "the record says so, too"
        return self.relay.read([window])["schema_version"].to_pylist()

    def settle(
        self, parts: tuple[Part, ...], skips: Collection[int]
    ) -> tuple[RecordedSchema, tuple[Part, ...]]:
        move = self.move
        ddl = DdlJob(
            TRUNCATE_TS,
            TRUNCATE_TS - 1,
            move.job_id,
            type=move.type,
            schema_version=60,
            effect=move.effect,
            began_ts=move.began_ts,
            finished_ts=move.finished_ts,
            versions=move.versions,
        )
        schema = RecordedSchema({100: move.before[100]}, (ddl, *self.later), (), 60)
        definitions = DefinitionResolver(self.relay, self.tikv.ask, lambda: self.safe_point)
        return definitions.resolve(
            schema, [move], parts, (LO, 5_000, "t"), skips, is_captured=self.is_captured
        )


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return Landing(tmp_path)


def row(p: int, rowid: int = 1, v: int = 0) -> dict[str, int]:
    return {"p": p, "v": v, ROWID_NAME: rowid}


INSERT = encode_insert(BEFORE, row(3))


def test_a_transaction_that_began_before_and_first_wrote_behind_the_ddl_wrote_by_the_new_definition(
    landing: Landing,
):
    landing.tikv.put(301, 1, MvccWrite(PUT, 1_950, 2_010))
    assert landing.versions((2_010, 1_950, 59, 0, INSERT)) == [60]


def test_one_that_the_ddl_waited_for_wrote_by_the_old_definition(landing: Landing):
    landing.tikv.put(201, 1, MvccWrite(PUT, 1_950, 2_010))
    assert landing.versions((2_010, 1_950, 59, 0, INSERT)) == [59]


def test_one_that_names_the_new_version_though_it_was_planned_before_wrote_by_the_old_definition(
    landing: Landing,
):
    landing.tikv.put(201, 1, MvccWrite(PUT, 2_040, 2_045))
    assert landing.versions((2_045, 2_040, 60, 0, INSERT)) == [59]


@pytest.mark.parametrize(
    ("kind", "change"),
    [(1, encode_update(BEFORE, row(3), row(3, v=1))), (2, encode_delete(BEFORE, row(3)))],
)
def test_updates_and_deletes_are_asked_about_like_inserts(
    landing: Landing, kind: int, change: bytes
):
    landing.tikv.put(201, 1, MvccWrite(PUT, 900, 910))
    landing.tikv.put(
        301,
        1,
        MvccWrite(PUT, 1_960, 2_005),
        MvccWrite(DELETE_KEY if kind == 2 else PUT, 1_950, 2_010),
    )
    assert landing.versions((2_010, 1_950, 59, kind, change)) == [60]


def test_a_lock_that_is_not_resolved_yet_tells_as_well(landing: Landing):
    landing.tikv.put(301, 1, lock=MvccLock(1_950, b"k", 1, PUT))
    assert landing.versions((2_010, 1_950, 59, 0, INSERT)) == [60]


def test_locks_and_rollbacks_of_a_transaction_are_no_writes(landing: Landing):
    landing.tikv.put(301, 1, MvccWrite(LOCK, 1_950, 2_010), MvccWrite(ROLLBACK, 1_950, 1_950))
    landing.tikv.put(201, 1, MvccWrite(PUT, 1_950, 2_010))
    assert landing.versions((2_010, 1_950, 59, 0, INSERT)) == [59]


def test_rows_of_other_partitions_and_of_transactions_behind_the_ddl_are_not_asked_about(
    landing: Landing,
):
    other = encode_insert(BEFORE, row(13))
    assert landing.versions(
        (1_500, 1_400, 59, 0, INSERT), (2_010, 1_950, 59, 0, other), (3_000, 2_999, 60, 0, INSERT)
    )
    assert landing.tikv.asked == 0


def test_a_row_that_came_and_went_in_the_transaction_may_have_been_anywhere(landing: Landing):
    found = landing.versions(
        (2_010, 1_950, 59, 0, INSERT), (2_010, 1_950, 59, 2, encode_delete(BEFORE, row(3)))
    )
    assert len(set(found)) == 1


def test_a_transaction_whose_versions_are_gone_is_named_with_the_hint(landing: Landing):
    landing.safe_point = 4_000
    with pytest.raises(
        DefinitionUnknownError, match=r"commit_ts 2010 .*'d\.t'.*DDL job 7.*GC has dropped it"
    ) as raised:
        landing.versions((2_010, 1_950, 59, 0, INSERT))
    assert (
        "`sluice txn skip 2010`" in raised.value.hint
        and "`sluice backfill --table d.t`" in raised.value.hint
    )
    assert Landing(Path(landing.relay.url.removeprefix("file://")) / "again").versions(
        (2_010, 1_950, 59, 0, INSERT), skips={2_010}
    ) == [59]


def test_a_text_key_that_only_tidb_can_order_is_told_by_another_row_of_the_transaction(
    landing: Landing,
):
    tables = [table(*ids, collate="utf8mb4_unicode_ci") for ids in ((201, 202), (301, 202))]
    landing.move = truncate(*tables)
    image = {"p": 3, "v": 0, "s": "x"}
    delete, insert = encode_delete(tables[0], image), encode_insert(tables[0], image | {"s": "y"})
    with pytest.raises(DefinitionUnknownError, match="a collation whose order only TiDB knows"):
        landing.versions((2_010, 1_950, 59, 2, delete))
    again = Landing(Path(landing.relay.url.removeprefix("file://")) / "again")
    again.move = landing.move
    again.tikv.ask = lambda keys: {  # type: ignore[method-assign]
        key: Mvcc(
            None, (MvccWrite(PUT, 1_950, 2_010),) if key.startswith(b"t" + encode_int(301)) else ()
        )
        for key in keys
    }
    assert again.versions((2_010, 1_950, 59, 2, delete), (2_010, 1_950, 59, 0, insert)) == [60, 60]


def test_a_transaction_ahead_of_a_drop_is_named_by_the_ddl_of_a_later_window(landing: Landing):
    after = table(202)
    move = replace(
        truncate(BEFORE, after),
        type=Action.DROP_PARTITION,
        began_ts=500,
        versions=(58, 59, 60),
        finished_ts=2_050,
    )
    landing.tikv.put(202, 1, MvccWrite(PUT, 600, 700))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([v], f.type) for v, f in zip((700, 600, 0, 100, 57, 0, INSERT), PART_SCHEMA)],
        schema=PART_SCHEMA,
    )
    part = landing.relay.write_part(400, LO, "t", 0, [batch])
    assert part is not None
    early = RecordedSchema({100: BEFORE}, (), (), 57)
    landing.relay.begin(early.write_to(WindowRecord(400, LO, 7, "t", 0, 1, 1, 57, (part,))))
    landing.move = move
    schema, _ = landing.settle((), ())
    assert schema.ddls[0].ahead == (600,)


def test_rows_that_a_pump_captured_name_their_definitions_and_are_not_asked_about(
    landing: Landing,
):
    landing.is_captured, landing.safe_point = True, 4_000
    assert landing.versions((2_010, 1_950, 60, 0, INSERT), (2_020, 300, 59, 0, INSERT)) == [60, 59]
    assert landing.tikv.asked == 0


@pytest.mark.parametrize("is_captured", [False, True])
def test_captured_transactions_of_earlier_windows_are_never_ahead_of_a_ddl(
    landing: Landing, is_captured: bool
):
    landing.tikv.put(202, 1, MvccWrite(PUT, 600, 700))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([v], f.type) for v, f in zip((700, 600, 0, 100, 57, 0, INSERT), PART_SCHEMA)],
        schema=PART_SCHEMA,
    )
    part = landing.relay.write_part(400, LO, "t", 0, [batch])
    assert part is not None
    early = RecordedSchema({100: BEFORE}, (), (), 57).write_to(
        WindowRecord(400, LO, 7, "t", 0, 1, 1, 57, (part,), is_captured=is_captured)
    )
    landing.relay.begin(early)
    landing.move = replace(
        truncate(BEFORE, table(202)),
        type=Action.DROP_PARTITION,
        began_ts=500,
        versions=(58, 59, 60),
        finished_ts=2_050,
    )
    landing.is_captured = True
    schema, _ = landing.settle((), ())
    # One that was landed from binlogs before the pipeline went over to TiKV may be.
    assert schema.ddls[0].ahead == (() if is_captured else (600,))


def added(after: Table, ts: int, version: int) -> DdlJob:
    """ADD or REORGANIZE PARTITION: no DDL that landing asks about."""
    return DdlJob(
        ts, ts - 1, version, type=Action.ADD_PARTITION, schema_version=version,
        effect=DdlEffect({}, {100: after}),
    )  # fmt: skip


@pytest.mark.parametrize("used", [401, 402])
def test_a_transaction_may_have_used_what_later_ddl_made_of_the_partitions(
    landing: Landing, used: int
):
    landing.move = replace(truncate(BEFORE, table(201)), type=Action.DROP_PARTITION)
    landing.later = tuple(
        added(table(201, at), ts, version)
        for at, ts, version in ((401, 2_005, 61), (402, 2_007, 62))
    )
    landing.tikv.put(used, 1, MvccWrite(PUT, 1_950, 2_010))
    assert landing.versions((2_010, 1_950, 59, 0, encode_insert(BEFORE, row(13)))) == [60]


def test_it_may_have_used_what_ddl_of_an_earlier_window_made_of_them(landing: Landing):
    earlier = RecordedSchema({100: table(201)}, (added(table(201, 401), 3_000, 61),), (), 61)
    landing.relay.begin(earlier.write_to(WindowRecord(2_500, 3_500, 7, "t", 0, 1, 0, 61, ())))
    move = replace(truncate(BEFORE, table(201)), type=Action.DROP_PARTITION)
    change = (3_600, 1_950, 0, 100, 59, 0, encode_insert(BEFORE, row(13)))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([v], f.type) for v, f in zip(change, PART_SCHEMA)], schema=PART_SCHEMA
    )
    part = landing.relay.write_part(3_500, 4_000, "t", 0, [batch])
    assert part is not None
    landing.tikv.put(401, 1, MvccWrite(PUT, 1_950, 3_600))
    schema = RecordedSchema({100: table(201, 401)}, (), (), 61, (move,))
    definitions = DefinitionResolver(landing.relay, landing.tikv.ask, lambda: 0)
    _, parts = definitions.resolve(schema, [move], (part,), (3_500, 4_000, "t"))
    window = schema.write_to(WindowRecord(3_500, 4_000, 7, "t", 0, 1, 1, 61, parts))
    assert landing.relay.read([window])["schema_version"].to_pylist() == [60]


def test_landing_keeps_versions_and_goes_on_without_pd(caplog: pytest.LogCaptureFixture):
    pd = mock.Mock(spec=PDClient)
    pd.update_service_gc_safe_point.side_effect = [PDError("away"), 5, 9]
    versions = LandingSafePoint(pd, "drainer-1")
    with mock.patch("sluice.etl.landing._kept_versions._UPDATE_INTERVAL_S", 0.0):
        for ts in (5, 6, 7):
            versions.update(ts)
    assert [call.args[::2] for call in pd.update_service_gc_safe_point.call_args_list] == [
        ("sluice-land-drainer-1", ts) for ts in (5, 6, 7)
    ]
    assert "away" in caplog.text
