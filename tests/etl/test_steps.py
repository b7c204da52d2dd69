"""Prepared steps as record batches and back."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.steps import (
    CommitDetail,
    DeleteDetail,
    DroppedUniqueIndex,
    DropUniqueness,
    FlushDetail,
    HoldAsBytes,
    InFlightDetail,
    LoadDetail,
    Step,
    TransactionDetail,
    from_batches,
    lists_from_batches,
    to_batches,
)

WIDE = LoadLayout(("n", "b", "g"), ("b",), ("n",), ("g",), ("g",), ("g",))


def test_steps_come_back_as_they_were() -> None:
    steps = [
        Step(HoldAsBytes(("ä", "b"), 4), 4, "d", "t"),
        Step(DropUniqueness((DroppedUniqueIndex("PRIMARY", (("id", -1), ("é", 3))),)), 4, "d", "t"),
        Step(InFlightDetail(3, (4, 5)), 7),
        Step(
            LoadDetail(1, layout=LoadLayout(("n", "é"), hex=("é",))), 5, "d", "t", 3, 0, b"\x00abc"
        ),
        Step(
            LoadDetail(1, True, False, "u.t", 2, layout=WIDE, replaces=3, keys=("n",), warnings=1),
            5,
            "d",
            "t",
            3,
        ),
        Step(DeleteDetail(2, absent=True), 6, "d", "t", 1, 0, b""),
        Step(FlushDetail(), 6),
        Step(TransactionDetail(2), 6, rows=3),
        Step(TransactionDetail(0, True), 6),
        Step(CommitDetail(8, {"read": 1.5}, ("é", "b")), 7, changes=4),
        Step(CommitDetail(), 7),
    ]
    found = list(from_batches(to_batches(iter(steps))))
    assert [
        (s.kind, s.commit_ts, s.full_name, s.detail, s.rows, bytes(s.payload)) for s in found
    ] == [(s.kind, s.commit_ts, s.full_name, s.detail, s.rows, s.payload) for s in steps]


def test_a_step_of_another_kind_than_expected_is_refused() -> None:
    step = Step(CommitDetail(), 7)
    assert step.detail_of(CommitDetail) == CommitDetail()
    with pytest.raises(TypeError, match="a commit step, where one with a LoadDetail was expected"):
        step.detail_of(LoadDetail)


def test_a_missing_step_is_noticed() -> None:
    first, second = to_batches(
        iter([Step(DeleteDetail(5), 5, payload=b"x" * (5 << 20)), Step(CommitDetail(), 7)])
    )
    with pytest.raises(ValueError, match="step 0 expected, 1 found"):
        list(from_batches([second]))
    assert [s.kind for s in from_batches([first, second])] == ["delete", "commit"]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_a_slice_of_a_batch_has_its_own_steps(kind: pa.DataType) -> None:
    """As Arrow gives them that came over a connection, or in another width."""
    steps = [Step(DeleteDetail(n + 1), n + 1, "d", f"t{n}", n, 0, b"x" * (n % 3)) for n in range(9)]
    (whole,) = to_batches(iter(steps))
    columns = [
        column.cast(kind) if name == "payload" else column
        for name, column in zip(whole.schema.names, whole.columns, strict=True)
    ]
    widened = pa.RecordBatch.from_arrays(columns, whole.schema.names)
    found = list(from_batches([widened.slice(0, 4), widened.slice(4, 0), widened.slice(4)]))
    assert [(s.table, s.rows, bytes(s.payload)) for s in found] == [
        (s.table, s.rows, s.payload) for s in steps
    ]


def test_each_record_batch_is_a_list_and_counted_on() -> None:
    batches = list(
        to_batches(
            iter([Step(DeleteDetail(5), 5, payload=b"x" * (5 << 20)), Step(CommitDetail(), 7)])
        )
    )
    assert [[s.kind for s in steps] for steps in lists_from_batches(batches)] == [
        ["delete"],
        ["commit"],
    ]
    lists = lists_from_batches([batches[0], batches[0]])
    assert len(next(lists)) == 1
    with pytest.raises(ValueError, match="step 1 expected, 0 found"):
        next(lists)


def test_payloads_are_given_back_when_their_batch_is_gone() -> None:
    gc.collect()
    before = pa.total_allocated_bytes()
    for _ in range(20):
        payload = pa.array(["x" * 100] * 20_000, pa.large_string()).buffers()[2]
        list(to_batches(iter([Step(DeleteDetail(5), 5, payload=payload)])))
        del payload
    assert pa.total_allocated_bytes() - before < 4 << 20
