"""The benchmark of a capture puts every change that it makes into the store."""

from __future__ import annotations

import pytest

from sluice.bench.capture import measure
from sluice.bench.capture_stream import measure_stream


@pytest.mark.parametrize("changes", [1, 4, 100])
def test_all_changes_arrive_and_every_stage_is_timed(changes: int) -> None:
    result = measure(1000, changes, lambda line: None)
    assert (result.rows, result.transactions) == (1000, 1000 // changes)
    assert result.message_bytes > result.stored_bytes > 100 * result.rows
    assert {*result.cpu_us} == {"match", "sort", "convert and write", "store"}
    assert result.as_dict()["rows_per_s"] == result.rows / result.seconds


def test_all_changes_arrive_through_a_connection() -> None:
    result = measure_stream(1000, 4, lambda line: None)
    assert (result.rows, result.transactions) == (1000, 250)
    assert result.message_bytes > result.stored_bytes > 100 * result.rows
    assert {*result.cpu_us} == {"capture"}
