"""What window records say of DDL, written and read again.

Also records that an older version wrote.
"""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.planning import BatchPayload, InFlightPayload, RecountRange, WindowPayload
from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaTimeline
from sluice.etl.changes.steps import LoadDetail, ScopedDdl, SurvivingRows
from sluice.relay import Part, WindowRecord
from sluice.tidb.ddl_job import DdlEffect, DdlJob, FinishedRowMove
from sluice.tidb.id_maps import tables_by_id, to_json
from sluice.tidb.schema import Column, Index, Schema, Table

TS = st.integers(1, 2**62)
NAMES = st.text(max_size=8)
IDS = st.integers(1, 2**40)
COLUMNS = st.builds(
    Column,
    id=IDS,
    name=NAMES,
    offset=st.integers(0, 9),
    tp=st.integers(0, 255),
    flag=st.integers(0, 2**13),
    charset=NAMES,
    elems=st.lists(NAMES, max_size=2).map(tuple),
    origin_default=st.none() | NAMES | st.binary(max_size=4),
)
INDEXES = st.builds(
    Index, id=IDS, name=NAMES, columns=st.just((("c", 0, -1),)), unique=st.booleans()
)
TABLES = st.builds(
    Table,
    id=IDS,
    schema_id=IDS,
    schema_name=NAMES,
    name=NAMES,
    columns=st.lists(COLUMNS, max_size=2).map(tuple),
    indexes=st.lists(INDEXES, max_size=1).map(tuple),
    partition=st.none() | st.just({"type": 1, "definitions": [{"id": 7}]}),
)
SCHEMAS = st.builds(Schema, id=IDS, name=NAMES, charset=NAMES)
BY_ID = st.dictionaries(IDS, st.none() | TABLES, max_size=2)
EFFECTS = st.builds(DdlEffect, st.dictionaries(IDS, st.none() | SCHEMAS, max_size=2), BY_ID)
VERSIONS = st.lists(st.integers(1, 999), max_size=3).map(tuple)
FACTS: dict[str, Any] = {
    "start_ts": TS,
    "job_id": IDS,
    "schema_state": st.integers(0, 5),
    "query": NAMES,
    "type": st.integers(0, 99),
    "schema_version": st.integers(0, 999),
    "schema_name": NAMES,
    "table_name": NAMES,
    "effect": EFFECTS,
    "time_zone": NAMES,
    "sql_mode": st.none() | st.integers(0, 2**40),
    "converted_from_ts": TS,
}
JOBS = st.builds(DdlJob, TS, **FACTS) | st.builds(
    DdlJob, TS, **FACTS, began_ts=TS, finished_ts=TS, versions=VERSIONS.filter(bool)
)
MOVES = st.builds(
    FinishedRowMove, st.integers(0, 99), IDS, TS, TS, st.integers(0, 999), VERSIONS, BY_ID, EFFECTS
)
KEPT = st.builds(
    SurvivingRows,
    NAMES,
    NAMES,
    st.just(LoadDetail(3, layout=LoadLayout(("a",), hex=("a",)))),
    IDS,
    TS,
    IDS,
)
SCOPED = st.builds(
    ScopedDdl,
    TS,
    **FACTS,
    before=BY_ID,
    merged=NAMES,
    only_if_empty=st.booleans(),
    needs_schemas=st.lists(NAMES, max_size=2).map(tuple),
    replaced_by=st.none() | st.lists(NAMES, max_size=2).map(tuple),
    kept=st.lists(KEPT, max_size=2).map(tuple),
)
PARTS = st.lists(
    st.builds(Part, NAMES, IDS, IDS, IDS, st.integers(0, 2**32 - 1), TS, TS), max_size=2
).map(tuple)
RECORDED = st.builds(
    RecordedSchema,
    BY_ID,
    st.lists(JOBS, max_size=2).map(tuple),
    st.lists(IDS, max_size=2).map(tuple),
    st.integers(0, 999),
    st.lists(MOVES, max_size=1).map(tuple),
    st.dictionaries(IDS, st.lists(IDS, max_size=2).map(tuple), max_size=2),
)
BATCHES = st.builds(
    BatchPayload,
    st.lists(st.builds(WindowPayload, TS, TS, TS, PARTS, RECORDED), max_size=2).map(tuple),
    st.booleans(),
    st.none() | st.builds(InFlightPayload, TS, st.frozensets(TS, max_size=2)),
    st.frozensets(TS, max_size=2),
    st.dictionaries(TS, st.lists(NAMES, max_size=2).map(tuple), max_size=2),
    st.dictionaries(TS, st.lists(PARTS, max_size=2).map(tuple), max_size=2),
    st.lists(st.builds(RecountRange, IDS, TS, PARTS), max_size=2).map(tuple),
    tables_under_repair=st.frozensets(IDS, max_size=2),
    rows=st.none() | IDS,
)


def through_json(document: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(document))
    return read


@given(JOBS)
def test_a_ddl_job_is_the_same_after_it_was_written_and_read(job: DdlJob) -> None:
    again = DdlJob.from_json(through_json(job.to_json()))
    assert again == job
    assert json.dumps(again.to_json()) == json.dumps(job.to_json()), (
        "nor does a second writing change a byte"
    )


@given(SCOPED)
def test_a_scoped_ddl_is_the_same_after_it_was_written_and_read(ddl: ScopedDdl) -> None:
    assert ScopedDdl.from_json(through_json(ddl.to_json())) == ddl


@given(MOVES)
def test_a_past_move_is_the_same_after_it_was_written_and_read(move: FinishedRowMove) -> None:
    assert FinishedRowMove.from_json(through_json(move.to_json())) == move


@given(BATCHES)
def test_a_batch_of_windows_is_the_same_after_it_was_written_and_read(batch: BatchPayload) -> None:
    assert BatchPayload.from_json(through_json(batch.to_json())) == batch
    text = batch.to_text()
    assert BatchPayload.from_text(text) == BatchPayload.from_text(batch.to_text()) == batch
    assert BatchPayload.from_text(json.dumps(json.loads(text), indent=1)) == batch


def test_a_batch_names_each_table_once_however_many_windows_it_has() -> None:
    table = {"id": 7, "schema_name": "a", "name": "t" * 10_000}
    schema = RecordedSchema(tables_by_id({"7": table}), (), (), 3)
    windows = tuple(WindowPayload(n, n + 1, n, (), schema) for n in range(100))
    text = BatchPayload(windows).to_text()
    assert len(text) < 10_000 + 100 * 200
    assert [to_json(window.schema.tables) for window in BatchPayload.from_text(text).windows] == [
        {"7": table}
    ] * 100


@given(RECORDED)
def test_a_recorded_schema_is_the_same_after_a_record_held_it(schema: RecordedSchema) -> None:
    window = schema.write_to(WindowRecord(1, 2**62, 7, "t", 0, 0, 0, 0))
    assert RecordedSchema.from_window(window) == schema


TABLE = {"id": 104, "schema_id": 102, "schema_name": "shop", "name": "item",
         "columns": [{"id": 1, "name": "id", "offset": 0, "tp": 3, "flag": 3, "flen": 11}],
         "pk_is_handle": True}  # fmt: skip
EARLIEST = {
    "commit_ts": 470614800453074946,
    "start_ts": 470614800400646146,
    "job_id": 105,
    "schema_state": 5,
    "query": "CREATE TABLE `item` (`id` INT PRIMARY KEY)",
    "type": 3,
    "schema_version": 53,
    "schema_name": "shop",
    "table_name": "item",
    "effect": {"schemas": {}, "tables": {"104": TABLE, "99": None}},
}
"""As records had it before sessions and versions were noted in them."""
LATER = {
    **EARLIEST,
    "type": 20,
    "time_zone": "Asia/Shanghai",
    "sql_mode": 1436549152,
    "converted_from_ts": 470614800400646000,
    "began_ts": 470614800400646000,
    "finished_ts": 470614800453075000,
    "versions": [51, 52, 53],
}


def test_ddl_of_a_record_that_an_older_version_wrote_is_read() -> None:
    job = DdlJob.from_json(EARLIEST)
    assert (job.commit_ts, job.type, job.schema_version, job.versions) == (
        470614800453074946,
        3,
        53,
        (),
    )
    assert (job.time_zone, job.sql_mode, job.converted_from_ts) == ("", None, 0)
    made = job.effect.tables[104]
    assert made is not None
    assert made.full_name == "shop.item"
    assert job.effect.tables[99] is None


def test_ddl_is_written_byte_for_byte_as_records_have_it() -> None:
    assert json.dumps(DdlJob.from_json(LATER).to_json()) == json.dumps(LATER)
    unmoved = {
        key: value
        for key, value in LATER.items()
        if key not in ("began_ts", "finished_ts", "versions")
    }
    assert json.dumps(DdlJob.from_json(unmoved).to_json()) == json.dumps(unmoved)


def test_a_table_that_nobody_looks_at_is_handed_on_without_being_parsed() -> None:
    unreadable = {
        **LATER,
        "effect": {"schemas": {}, "tables": {"104": {"of a version": "to come"}}},
    }
    assert DdlJob.from_json(unreadable).to_json() == unreadable


def test_rows_behind_the_ddl_that_took_the_id_of_their_table_are_read_by_its_last_definition() -> (
    None
):
    old, new = (
        Table(5, 1, "d", "t", (Column(1, "a", 0, 3),)),
        Table(6, 1, "d", "t", (Column(1, "a", 0, 3),)),
    )
    ddl = DdlJob(20, type=72, effect=DdlEffect({}, {5: None, 6: new}))
    here = SchemaTimeline(RecordedSchema({5: old}, (ddl,), (), 9))
    assert (here.reads(5, 10), here.reads(5, 30), here.reads(6, 30), here.reads(6, 10)) == (
        old,
        old,
        new,
        None,
    )
    assert here.find(5, 30) is None
    later = SchemaTimeline(RecordedSchema({6: new}, (), (), 9, (ddl.past_move({5: old}),)))
    assert (later.reads(5, 40), later.find(5, 40)) == (old, None)
