"""Landing stops at a row that EXCHANGE PARTITION put into a partition where it doesn't belong."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.landing._misplaced_rows import MisplacedRowError, check_row_partitions
from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE, RelayLog
from sluice.tidb.codec.row import encode_delete, encode_insert, encode_update
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlEffect, DdlJob, FinishedRowMove
from sluice.tidb.schema import Table
from tests.etl.landing.test_definitions_used import BEFORE, row, table

ORDINARY = replace(BEFORE, id=150, name="x", partition=None)
EXCHANGED = table(150, 202)
"""p0, p below 10, is what table x was."""
THERE = FinishedRowMove(
    Action.EXCHANGE_PARTITION, 7, 1_900, 2_050, 60, (60,), {100: BEFORE, 150: ORDINARY},
    DdlEffect({}, {100: EXCHANGED, 150: None, 201: replace(ORDINARY, id=201)}),
)  # fmt: skip
BACK = FinishedRowMove(
    Action.EXCHANGE_PARTITION,
    8,
    2_900,
    3_050,
    61,
    (61,),
    {100: EXCHANGED, 201: replace(ORDINARY, id=201)},
    DdlEffect({}, {100: BEFORE, 201: None, 150: ORDINARY}),
)


class Checked:
    """A window (1000, 5000] with the EXCHANGE PARTITION of p0 at 2000, and the one that undoes it
    at 3000.
    """

    def __init__(self, folder: Path) -> None:
        self.relay = RelayLog.open(folder.as_uri())
        self._number = 0

    def check(
        self,
        commit_ts: int,
        kind: int,
        change: bytes,
        table_id: int = 150,
        moves: Collection[FinishedRowMove] = (THERE,),
        skips: Collection[int] = (),
        *,
        is_past: bool = False,
    ) -> None:
        """Look at one change. `is_past`: the exchange was in an earlier window."""
        self._number += 1
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array([v], f.type)
                for v, f in zip((commit_ts, 1_950, 0, table_id, 59, kind, change), PART_SCHEMA)
            ],
            schema=PART_SCHEMA,
        )
        part = self.relay.write_part(1_000, max(5_000, commit_ts), f"t{self._number}", 0, [batch])
        assert part is not None
        ddls = tuple(
            DdlJob(
                1_000 * (move.job_id - 5), job_id=move.job_id, type=move.type, effect=move.effect
            )
            for move in moves
        )
        schema = RecordedSchema({100: BEFORE, 150: ORDINARY}, () if is_past else ddls, (), 60)
        check_row_partitions(self.relay, schema, moves, (part,), skips)


@pytest.fixture
def window(tmp_path: Path) -> Checked:
    return Checked(tmp_path)


@pytest.mark.parametrize("is_past", [False, True])
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (INSERT, encode_insert(ORDINARY, row(15))),
        (UPDATE, encode_update(ORDINARY, row(3), row(15))),
    ],
    ids=["insert", "update"],
)
def test_a_row_of_another_partition_is_named_with_the_hint(
    window: Checked, kind: int, change: bytes, is_past: bool
):
    with pytest.raises(
        MisplacedRowError,
        match=r"commit_ts 2010 .*'d\.x' behind DDL job 7.*'p0' of table 'd\.t'.*15",
    ) as e:
        window.check(2_010, kind, change, is_past=is_past)
    assert "`sluice txn skip 2010`" in e.value.hint
    assert "`sluice backfill --table d.t --table d.x`" in e.value.hint
    window.check(2_010, kind, change, skips={2_010}, is_past=is_past)


@pytest.mark.parametrize(
    ("commit_ts", "kind", "change", "own", "moves"),
    [
        (1_990, INSERT, encode_insert(ORDINARY, row(15)), ORDINARY, (THERE,)),
        (2_010, INSERT, encode_insert(ORDINARY, row(3)), ORDINARY, (THERE,)),
        (2_010, UPDATE, encode_update(ORDINARY, row(15), row(3)), ORDINARY, (THERE,)),
        (2_010, DELETE, encode_delete(ORDINARY, row(15)), ORDINARY, (THERE,)),
        (2_010, INSERT, encode_insert(BEFORE, row(15)), BEFORE, (THERE,)),
        (3_010, INSERT, encode_insert(ORDINARY, row(15)), ORDINARY, (THERE, BACK)),
        (
            2_010,
            INSERT,
            encode_insert(ORDINARY, row(15)),
            ORDINARY,
            (replace(THERE, type=Action.TRUNCATE_PARTITION),),
        ),
    ],
    ids=[
        "before",
        "belongs there",
        "comes back",
        "goes",
        "of the partitioned table",
        "ordinary again",
        "no exchange",
    ],
)
def test_rows_that_lie_where_they_belong_are_landed(
    window: Checked,
    commit_ts: int,
    kind: int,
    change: bytes,
    own: Table,
    moves: Collection[FinishedRowMove],
):
    window.check(commit_ts, kind, change, own.id, moves)


def test_the_hint_can_be_pasted_whatever_the_tables_are_called(window: Checked):
    odd = replace(ORDINARY, schema_name="my.db", name="a b*")
    move = replace(THERE, before={100: BEFORE, 150: odd})
    with pytest.raises(MisplacedRowError) as e:
        window.check(2_010, INSERT, encode_insert(ORDINARY, row(15)), moves=(move,))
    assert "`sluice backfill --table d.t --table '`my.db`.a b[*]'`" in e.value.hint


def test_a_row_that_only_tidb_can_place_is_landed(window: Checked):
    partition = dict(EXCHANGED.partition or {}, expr="unknown(`p`)")
    effect = DdlEffect({}, {100: replace(EXCHANGED, partition=partition), 150: None})
    window.check(
        2_010, INSERT, encode_insert(ORDINARY, row(15)), moves=(replace(THERE, effect=effect),)
    )
