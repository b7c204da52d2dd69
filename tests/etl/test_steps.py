"""Prepared steps as record batches and back."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

from etl.steps import Step, from_batches, to_batches


def test_steps_come_back_as_they_were() -> None:
    steps = [
        Step("load", 5, "d", "t", {"n": [1, "é"]}, 3, 0, b"\x00abc"),
        Step("delete", 6, "d", "t", {}, 1, 0, b""),
        Step("commit", 7),
    ]
    found = list(from_batches(to_batches(iter(steps))))
    assert [(s.kind, s.commit_ts, s.full_name, s.detail, s.rows, bytes(s.payload)) for s in found] == [
        (s.kind, s.commit_ts, s.full_name, s.detail, s.rows, s.payload) for s in steps
    ]


def test_a_missing_step_is_noticed() -> None:
    first, second = to_batches(iter([Step("load", 5, payload=b"x" * (5 << 20)), Step("commit", 7)]))
    with pytest.raises(ValueError, match="step 0 expected, 1 found"):
        list(from_batches([second]))
    assert [s.kind for s in from_batches([first, second])] == ["load", "commit"]


def test_payloads_are_given_back_when_their_batch_is_gone() -> None:
    gc.collect()
    before = pa.total_allocated_bytes()
    for _ in range(20):
        payload = pa.array(["x" * 100] * 20_000, pa.large_string()).buffers()[2]
        list(to_batches(iter([Step("load", 5, payload=payload)])))
        del payload
    assert pa.total_allocated_bytes() - before < 4 << 20
