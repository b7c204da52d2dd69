"""Batches in a ring of clusters end where the origin of the transactions changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.etl.changes.channels import Channels
from sluice.etl.changes.planning import (
    BatchPayload,
    PrepareOptions,
    SharedPayload,
    WindowPayload,
    prepare_steps,
)
from sluice.etl.changes.planning._origin_runs import origin_runs
from sluice.etl.changes.rules import OWN_SCHEMAS, Filter
from sluice.etl.changes.steps import ChangeError, CommitDetail, InFlightDetail, Step
from sluice.etl.downstream import Checkpoint
from sluice.relay import INSERT, PART_SCHEMA, RelayLog, WindowRecord
from sluice.tidb.ddl_job import DdlEffect
from sluice.tidb.rows import encode_insert
from tests.etl.story import ITEM, column, table, wider
from tests.examples import examples

OWN, BEFORE, BEFORE_THAT, NEXT = 1, 4, 3, 2
RING = Channels.of_ring(OWN, (OWN, NEXT, BEFORE_THAT, BEFORE))
MARKS = replace(
    table(90, "_drainer_repl_mark", "id bigint", "channel_id bigint", primary="id,channel_id"),
    schema_name="retl",
    schema_id=9,
)
WIDE = wider(ITEM, column(3, "w int default 0"))
OTHER = replace(table(91, "checkpoint", "id int", primary="id"), schema_name="tidb_binlog")
FILTERS = Filter(own_schemas=OWN_SCHEMAS | {"retl", "tidb_binlog"})


@dataclass(frozen=True)
class Transaction:
    """A transaction of some rows; `mark` is None if an application wrote it."""

    commit_ts: int
    start_ts: int
    rows: tuple[int, ...]
    mark: int | None = None
    second_mark: int | None = None

    @property
    def channel(self) -> int:
        return OWN if self.mark is None else self.mark


def changes_of(one: Transaction, ddl_ts: int) -> Iterator[tuple[object, ...]]:
    for n, number in enumerate(one.rows):
        wide = 0 < ddl_ts < one.commit_ts
        row = encode_insert(WIDE if wide else ITEM, {"id": number, "v": 0, "w": 0})
        yield one.commit_ts, one.start_ts, n, ITEM.id, 1, INSERT, row
    if one.mark is None:
        return
    there = encode_insert(OTHER, {"id": one.start_ts})
    yield one.commit_ts, one.start_ts, 1_000, OTHER.id, 1, INSERT, there
    for n, channel in enumerate((one.mark, one.second_mark)):
        if channel is not None:
            mark = encode_insert(MARKS, {"id": one.start_ts, "channel_id": channel})
            yield one.commit_ts, one.start_ts, 1_001 + n, MARKS.id, 1, INSERT, mark


def land(
    url: str, lo: int, hi: int, transactions: list[Transaction], ddl_ts: int = 0
) -> WindowRecord:
    """A window; at `ddl_ts` (TSO), here or elsewhere, the table gets a column."""
    relay = RelayLog.open(url)
    rows = [row for each in transactions for row in changes_of(each, ddl_ts)]
    parts = ()
    if rows:
        columns = [
            pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), PART_SCHEMA, strict=True)
        ]
        part = relay.write_part(
            lo, hi, "t", 0, [pa.RecordBatch.from_arrays(columns, schema=PART_SCHEMA)]
        )
        assert part is not None
        parts = (part,)
    item = WIDE if 0 < ddl_ts <= lo else ITEM
    tables = {str(each.id): each.to_json() for each in (item, MARKS, OTHER)}
    ddls = (added_column(ddl_ts),) if lo < ddl_ts <= hi else ()
    record = WindowRecord(
        lo, hi, 7, "t", 0, len(transactions), len(rows), 1, parts, tables, ddls, is_captured=True
    )
    relay.commit(record)
    return record


def added_column(ddl_ts: int) -> dict[str, object]:
    """The DDL job that adds a column, as a window has it."""
    return {
        "commit_ts": ddl_ts,
        "start_ts": ddl_ts - 1,
        "job_id": 5,
        "query": "ALTER TABLE `item` ADD COLUMN `w` int DEFAULT 0",
        "schema_state": 5,
        "type": 5,
        "schema_version": 2,
        "schema_name": "d",
        "table_name": "item",
        "effect": DdlEffect({}, {WIDE.id: WIDE}).to_json(),
    }


def steps_from(
    url: str, windows: list[WindowRecord], at: Checkpoint, plan: str = "net"
) -> list[Step]:
    """The steps that take a downstream on from a checkpoint."""
    shared = at.shared
    batch = BatchPayload(
        tuple(WindowPayload.from_window(w, at.commit_ts) for w in windows if w.hi > at.commit_ts),
        begun=None if shared is None else SharedPayload(shared.ts, shared.jobs, shared.channels),
    )
    batch = BatchPayload.from_text(batch.to_text())  # as a worker gets it
    return list(prepare_steps(url, batch, PrepareOptions(plan, filters=FILTERS, channels=RING)))


def loaded(step: Step) -> list[int]:
    """The keys of the rows that a load step brings."""
    lines = bytes(step.payload).decode().splitlines() if step.kind == "load" else []
    return [int(line.split("\t")[0]) for line in lines]


@dataclass
class Commit:
    """What a transaction downstream brings."""

    rows: list[int]
    detail: CommitDetail | None
    """None for a DDL statement."""
    checkpoint: Checkpoint


def commits_of(steps: list[Step], at: Checkpoint) -> Iterator[Commit]:
    """What the steps commit, and the checkpoint after each."""
    rows: list[int] = []
    for step in steps:
        rows += loaded(step)
        if isinstance(step.detail, CommitDetail):
            at = at.at(step.commit_ts)
            if step.detail.rows_through:
                at = at.before_rest_of(
                    step.detail.rows_through, channels=step.detail.channels_through
                )
            at = Checkpoint.parse(at.to_text(), 7)
            yield Commit(rows, step.detail, at)
            rows = []
        elif step.kind == "ddl":
            assert not rows
            at = at.at(step.commit_ts)
            yield Commit([], None, at)


def returned_in(commits: list[Commit]) -> int:
    """How many transactions that came from downstream the commits count."""
    return sum(each.detail.returned for each in commits if each.detail is not None)


@st.composite
def histories(draw: st.DrawFn) -> list[list[Transaction]]:
    """Windows of transactions, several of which may have one commit_ts."""
    marks = st.sampled_from([None, None, BEFORE, BEFORE, BEFORE_THAT, NEXT])
    sizes = st.integers(0, 3)
    drawn = draw(st.lists(st.tuples(marks, sizes, st.booleans(), st.booleans()), max_size=14))
    windows: list[list[Transaction]] = [[]]
    commit_ts, keys = 100, itertools.count()
    for n, (mark, size, is_same_ts, begins_window) in enumerate(drawn):
        if not is_same_ts or not windows[-1]:
            commit_ts += 10
            if begins_window:
                windows.append([])
        rows = tuple(itertools.islice(keys, size))
        windows[-1].append(Transaction(commit_ts, 10_000 + n, rows, mark))
    return windows


@pytest.mark.parametrize("plan", ["net", "groups"])
@given(history=histories(), seed=st.integers(0, 1_000), ddl=st.sampled_from([0, 110, 125, 130]))
@settings(max_examples=examples(120), deadline=None)
def test_each_commit_has_the_rows_of_one_origin_and_goes_on_wherever_it_stops(
    plan: str, history: list[list[Transaction]], seed: int, ddl: int
) -> None:
    with TemporaryDirectory() as folder:
        url, lo, landed = f"file://{folder}/relay", 100, []
        for transactions in history:
            hi = max([lo, *(each.commit_ts for each in transactions)]) + 5
            landed.append(land(url, lo, hi, transactions, ddl))
            lo = hi
        everything = [each for transactions in history for each in transactions]
        channel_of = {row: each.channel for each in everything for row in each.rows}
        wanted = [row for each in everything if each.mark != NEXT for row in each.rows]
        returned = sum(each.mark == NEXT for each in everything)

        whole = list(commits_of(steps_from(url, landed, Checkpoint(100), plan), Checkpoint(100)))
        ddl = ddl if ddl <= lo else 0
        assert sum(commit.detail is None for commit in whole) == bool(ddl)
        for commit in whole:
            if commit.detail is not None:
                assert {channel_of[row] for row in commit.rows} <= {commit.detail.channel}
        assert sorted(row for commit in whole for row in commit.rows) == sorted(wanted)
        assert returned_in(whole) == returned
        assert whole[-1].checkpoint.commit_ts == lo
        assert whole[-1].checkpoint.shared is None

        stopped = whole[: 1 + seed % len(whole)]  # and then the process dies
        at = stopped[-1].checkpoint
        rest = [] if at.commit_ts == lo else steps_from(url, landed, at, plan)
        both = [*stopped, *commits_of(rest, at)]
        assert sorted(row for commit in both for row in commit.rows) == sorted(wanted)
        assert returned_in(both) == returned
        assert sum(commit.detail is None for commit in both) == bool(ddl)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 2, 3])), max_size=40),
)
def test_runs_have_every_change_once_in_order_and_are_as_few_as_there_can_be(
    steps: list[tuple[int, int]],
) -> None:
    commit_ts = np.cumsum(np.array([gap for gap, _ in steps], np.int64)) + 1
    channels = np.array([channel for _, channel in steps], np.int64)
    runs = origin_runs(commit_ts, channels)
    assert sorted(place for run in runs for place in run.places) == list(range(len(steps)))
    for run in runs:
        assert set(channels[run.places].tolist()) == {run.channel}
        assert run.places.tolist() == sorted(run.places.tolist())
        assert run.divides in (0, commit_ts[run.places[-1]])
    for one, following in itertools.pairwise(runs):
        last, first = commit_ts[one.places[-1]], commit_ts[following.places[0]]
        assert one.channel != following.channel
        assert (last == first) if one.divides else (last < first)


def test_neighbours_of_one_origin_are_one_transaction(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/relay"
    marks = [None, BEFORE, BEFORE, NEXT, BEFORE, None, None]
    history = [Transaction(110 + n, 10_000 + n, (n,), mark) for n, mark in enumerate(marks)]
    landed = [land(url, 100, 200, history)]
    found = list(commits_of(steps_from(url, landed, Checkpoint(100)), Checkpoint(100)))
    assert [(each.detail and each.detail.channel, each.rows) for each in found] == [
        (OWN, [0]),
        (BEFORE, [1, 2, 4]),
        (OWN, [5, 6]),
    ]
    assert [each.checkpoint.commit_ts for each in found] == [110, 114, 200]


def test_commits_of_checkpoints_alone_do_not_end_a_batch(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/relay"
    marks = [None, BEFORE, None]
    history = [
        Transaction(110 + n, 10_000 + n, () if mark else (n,), mark) for n, mark in enumerate(marks)
    ]
    landed = [land(url, 100, 200, history)]
    steps = steps_from(url, landed, Checkpoint(100))
    assert sum(step.kind == "commit" for step in steps) == 1


def test_what_is_in_flight_has_its_mark_before_it_is_written(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/relay"
    history = [Transaction(110, 10_000, (1,), BEFORE), Transaction(120, 10_001, (2,))]
    steps = steps_from(url, [land(url, 100, 200, history)], Checkpoint(100), "groups")
    flights = [step.detail for step in steps if isinstance(step.detail, InFlightDetail)]
    assert [each.channel for each in flights] == [BEFORE, OWN]


@pytest.mark.parametrize(
    ("mark", "part"),
    [(OWN, "the upstream's own"), (9, r"ring has only channels 1, 2, 3, 4")],
)
def test_marks_that_cannot_come_from_the_ring_stop_by_name(
    tmp_path: Path, mark: int, part: str
) -> None:
    url = f"file://{tmp_path}/relay"
    landed = [land(url, 100, 200, [Transaction(110, 10_000, (1,), mark)])]
    with pytest.raises(ChangeError, match=f"commit_ts 110 .*mark of channel {mark} .*{part}"):
        steps_from(url, landed, Checkpoint(100))


def test_rows_with_marks_of_two_clusters_stop_by_name(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/relay"
    landed = [land(url, 100, 200, [Transaction(110, 10_000, (1,), BEFORE, BEFORE_THAT)])]
    with pytest.raises(ChangeError, match="commit_ts 110 has the marks of channels 3, 4 in"):
        steps_from(url, landed, Checkpoint(100))
