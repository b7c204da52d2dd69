"""What TiDB writes twice while it reorganizes partitions lands once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.landing._second_writes import DuplicateWrites
from sluice.etl.landing.definitions_used import DefinitionUnknownError
from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE, RelayLog, read_parts
from sluice.tidb.codec.memcomparable import encode_int
from sluice.tidb.codec.row import ROWID_NAME, encode_delete, encode_insert, encode_update
from sluice.tidb.record_keys import record_key
from sluice.tidb.rows import decode_deletes, decode_inserts, decode_updates
from sluice.tidb.schema import Column, Index, Table
from sluice.tidb.tikv import Mvcc, MvccWrite
from tests.examples import examples

_COLUMNS = Column(1, "p", 0, 3, 1), Column(2, "v", 1, 3, 1)
_KEY = Index(1, "PRIMARY", (("p", 0, -1), ("v", 1, -1)), unique=True, primary=True)
CLUSTERED = Table(
    100, 1, "d", "t", _COLUMNS, (_KEY,), partition={"enable": True}, is_common_handle=True
)
KEYLESS = Table(100, 1, "d", "t", _COLUMNS, partition={"enable": True})
_OLD, _NEW = {0: 200, 1: 200, 2: 201}, {0: 300, 1: 301, 2: 302}
"""The partition of each p by the old and the new definition; p = 3 stays where it is."""
_STAYS = 203
_IDS = {100, *_OLD.values(), *_NEW.values(), _STAYS}
_STATES = ("before", "delete only", "write only", "delete reorganization", "behind")
Row = tuple[int, int]


@dataclass
class Session:
    """A transaction of a TiDB that is in one of the job's states, and the table with its physical
    partitions.
    """

    table: Table
    state: str
    keeps_row_ids: bool
    """Whether the copy of a row has the row id of the original, as in TiDB from 8.5.2 on."""
    rows: list[tuple[Row, int]]
    """What the session sees: values and row id."""
    changes: list[tuple[int, bytes]] = field(default_factory=list)
    once: list[tuple[int, tuple[Row, ...]]] = field(default_factory=list)
    """The same without copies."""
    written: dict[tuple[int, int], bool] = field(default_factory=dict)
    """By partition and row id: whether the row is there in the end; False for one that the session
    deleted.
    """
    next_id: int = 50

    def place(self, row: Row, *, second: bool = False) -> int:
        """The partition that a row goes to first, or second; 0 without a second one."""
        is_new = self.state in _STATES[3:]
        if second and (row[0] not in _OLD or self.state in ("before", "behind")):
            return 0
        return (_NEW if is_new != second else _OLD).get(row[0], _STAYS)

    def insert(self, row: Row) -> None:
        if self.table is CLUSTERED and any(row == known for known, _ in self.rows):
            return
        self.once.append((INSERT, (row,)))
        row_id = self._add(self.place(row), row)
        if second := self.place(row, second=True):
            self._add(second, row, row_id if self.keeps_row_ids else None)
        self.rows.append((row, row_id))

    def delete(self, at: int) -> None:
        row, row_id = self.rows.pop(at)
        self.once.append((DELETE, (row,)))
        for place in (self.place(row), self.place(row, second=True)):
            if place:
                self._remove(place, row, row_id)

    def update(self, at: int, new: Row) -> None:
        old, row_id = self.rows[at]
        if new == old or self.table is CLUSTERED:  # its handle changes with any column
            if new != old and not any(new == known for known, _ in self.rows):
                self.delete(at)
                self.insert(new)
            return
        first, second = (
            (self.place(old), self.place(new)),
            (self.place(old, second=True), self.place(new, second=True)),
        )
        new_id = row_id
        if first[0] != first[1]:
            self.once += [(INSERT, (new,)), (DELETE, (old,))]
            new_id = self._add(first[1], new)
            self._remove(first[0], old, row_id)
        else:
            self.once.append((UPDATE, (old, new)))
            self._change(first[0], old, new, row_id)
        self.rows[at] = new, new_id
        if second[0] == second[1] != 0 and (new_id == row_id or not self.keeps_row_ids):
            self._change(second[0], old, new, row_id)
            return
        if second[1] and self.state != "delete only":
            self._add(second[1], new, new_id if self.keeps_row_ids else None)
        if second[0]:
            self._remove(second[0], old, row_id)

    def _add(self, place: int, row: Row, row_id: int | None = None) -> int:
        if row_id is None:
            row_id, self.next_id = self.next_id, self.next_id + 1
        self.changes.append((INSERT, encode_insert(self.table, self._image(row, row_id))))
        self.written[place, row_id] = True
        return row_id

    def _remove(self, place: int, row: Row, row_id: int) -> None:
        self.changes.append((DELETE, encode_delete(self.table, self._image(row, row_id))))
        if self.written.get((place, row_id)):
            del self.written[place, row_id]  # TiDB sends TiKV nothing of a row that came and went
        else:
            self.written[place, row_id] = False

    def _change(self, place: int, old: Row, new: Row, row_id: int) -> None:
        images = self._image(old, row_id), self._image(new, row_id)
        self.changes.append((UPDATE, encode_update(self.table, *images)))
        self.written[place, row_id] = True

    def _image(self, row: Row, row_id: int) -> dict[str, Any]:
        return {"p": row[0], "v": row[1]} | ({ROWID_NAME: row_id} if self.table is KEYLESS else {})


class Landing:
    """Lands transactions of sessions in one window."""

    def __init__(self, url: str) -> None:
        self.relay = RelayLog.open(url)
        self.asked = self.landed = 0
        self.differ: set[int] = set()

    def land(
        self, *sessions: Session, skips: Collection[int] = ()
    ) -> list[tuple[int, tuple[Row, ...]]]:
        keys: dict[bytes, list[MvccWrite]] = {}
        rows = []
        for number, session in enumerate(sessions):
            start_ts, commit_ts = 100 + 10 * number, 105 + 10 * number
            for (place, row_id), is_there in session.written.items():
                keys.setdefault(record_key(place, encode_int(row_id)), []).append(
                    MvccWrite(0 if is_there else 1, start_ts, commit_ts)
                )
            rows += [
                (commit_ts, start_ts, n, 100, 7, *change)
                for n, change in enumerate(session.changes)
            ]
        if not rows:
            return []

        def ask(wanted: Collection[bytes]) -> Mapping[bytes, Mvcc]:
            self.asked += len(wanted)
            return {key: Mvcc(None, tuple(keys.get(key, ()))) for key in wanted}

        table = sessions[0].table
        columns = [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), PART_SCHEMA)]
        self.landed += 1
        token = f"t{self.landed}"
        part = self.relay.write_part(
            50, 5_000, token, 0, [pa.RecordBatch.from_arrays(columns, schema=PART_SCHEMA)]
        )
        assert part is not None
        schema = RecordedSchema({100: table}, (), (), 7)
        parts, self.differ = DuplicateWrites(self.relay, ask).drop_copies(
            (part,), {100}, schema, lambda *_: _IDS, (50, 5_000, token), skips
        )
        return [self._decoded(table, row) for row in read_parts(self.relay.url, parts).to_pylist()]

    @staticmethod
    def _decoded(table: Table, row: Mapping[str, Any]) -> tuple[int, tuple[Row, ...]]:
        encoded = pa.array([row["row"]], pa.large_binary())
        if row["kind"] == UPDATE:
            images = [batch.to_pylist()[0] for batch in decode_updates(table, encoded)]
        else:
            images = (decode_inserts if row["kind"] == INSERT else decode_deletes)(
                table, encoded
            ).to_pylist()
        return row["kind"], tuple((image["p"], image["v"]) for image in images)


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Landing:
    return Landing(f"file://{tmp_path_factory.mktemp('relay')}")


def session(table: Table, state: str, *rows: Row, keeps_row_ids: bool = True) -> Session:
    return Session(table, state, keeps_row_ids, [(row, n + 1) for n, row in enumerate(rows)])


@pytest.mark.parametrize("state", _STATES)
@pytest.mark.parametrize("table", [CLUSTERED, KEYLESS], ids=["clustered", "keyless"])
@settings(max_examples=examples(60), deadline=None)
@given(rng=st.randoms(use_true_random=False), steps=st.integers(1, 7))
def test_each_change_lands_once_in_every_state_of_the_job(
    landing: Landing, table: Table, state: str, rng: random.Random, steps: int
):
    known = (
        [(0, 0), (1, 0), (2, 0), (3, 0)]
        if table is CLUSTERED
        else [(p, 0) for p in (0, 0, 1, 2, 2, 3)]
    )
    writer = session(table, state, *known)
    for _ in range(steps):
        row = rng.randrange(4), rng.randrange(2)
        if not writer.rows or rng.random() < 0.4:
            writer.insert(row)
        elif rng.random() < 0.5:
            writer.update(rng.randrange(len(writer.rows)), row)
        else:
            writer.delete(rng.randrange(len(writer.rows)))
    assert landing.land(writer) == writer.once
    assert not landing.differ


@pytest.mark.parametrize("state", _STATES[1:4])
@settings(max_examples=examples(60), deadline=None)
@given(rng=st.randoms(use_true_random=False), steps=st.integers(1, 5))
def test_copies_under_other_row_ids_are_left_out_and_their_table_is_named(
    landing: Landing, state: str, rng: random.Random, steps: int
):
    writer = session(KEYLESS, state, (0, 0), (1, 0), (2, 0), (3, 0), keeps_row_ids=False)
    for _ in range(steps):
        writer.insert((rng.randrange(4), rng.randrange(2)))
        if rng.random() < 0.3:
            writer.delete(rng.randrange(4 if len(writer.rows) > 4 else len(writer.rows)))
    assert Counter(landing.land(writer)) == Counter(writer.once)
    doubled = any(kind == INSERT and row[0][0] in _OLD for kind, row in writer.once)
    assert landing.differ == ({100} if doubled else set())


def test_a_row_that_moves_is_left_out_once_under_whatever_row_id_its_copy_is(landing: Landing):
    for state in _STATES[1:4]:
        for old, new in (
            ((0, 0), (1, 0)),
            ((0, 0), (2, 0)),
            ((3, 0), (1, 0)),
            ((1, 0), (3, 0)),
            ((0, 0), (0, 1)),
        ):
            writer = session(KEYLESS, state, old, keeps_row_ids=False)
            writer.update(0, new)
            assert Counter(landing.land(writer)) == Counter(writer.once), (state, old, new)


def test_equal_rows_of_a_transaction_that_began_before_the_job_both_land(landing: Landing):
    writer = session(KEYLESS, "before", keeps_row_ids=False)
    writer.insert((0, 0))
    writer.insert((0, 0))
    before = landing.asked
    assert landing.land(writer) == [(INSERT, ((0, 0),))] * 2
    assert landing.asked > before, "only TiKV tells these from a row and its copy"


def test_where_tikv_has_no_write_any_more_the_transaction_is_named_with_the_hint(
    landing: Landing,
):
    writer = session(KEYLESS, "write only", keeps_row_ids=False)
    writer.insert((0, 0))
    writer.written.clear()
    with pytest.raises(DefinitionUnknownError, match=r"commit_ts 105 .*'d\.t'") as raised:
        landing.land(writer)
    assert (
        "`sluice txn skip 105`" in raised.value.hint
        and "`sluice backfill --table d.t`" in raised.value.hint
    )
    assert len(landing.land(writer, skips={105})) == 2


def test_a_part_of_copies_alone_does_not_take_its_transactions_away(
    landing: Landing, tmp_path: Path
):
    writers = [session(CLUSTERED, state) for state in _STATES]
    for n, writer in enumerate(writers):
        writer.insert((n % 3, n))
    assert landing.land(*writers) == [change for writer in writers for change in writer.once]
