"""Prewrites in files: each transaction is read back until it ends, and files go with their last."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sluice.pump_service.capture.run_files import PUT, PrewriteFiles, RunFolder, RunRecord

_STARTS = st.integers(0, 5)
_KEYS = st.lists(st.binary(max_size=3), unique=True, max_size=4).map(sorted)
_STEPS = st.one_of(
    st.tuples(st.just("add"), st.dictionaries(_STARTS, _KEYS, min_size=1)),
    st.tuples(st.just("roll back"), _STARTS),
    st.tuples(st.just("drop"), _STARTS),
)


def record(start_ts: int, key: bytes) -> RunRecord:
    return RunRecord(7, start_ts, key, PUT, 1, key * 2, b"")


@given(st.lists(_STEPS, max_size=20))
def test_a_spilled_transaction_is_read_back_until_it_is_dropped_or_wholly_rolled_back(
    steps: list[tuple[str, Any]],
) -> None:
    model: dict[int, list[list[bytes]]] = {}
    left: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "runs"
        files = PrewriteFiles(RunFolder(place))
        for step, what in steps:
            if step == "add":
                files.add((ts, [record(ts, key) for key in what[ts]]) for ts in sorted(what))
                for ts, keys in what.items():
                    model.setdefault(ts, []).append(keys)
                    left[ts] = left.get(ts, 0) + len(keys)
            else:
                ts = what
                if step == "roll back":
                    files.roll_back(ts)
                    left[ts] = max(left.get(ts, 0) - 1, 0)
                if step == "drop":
                    files.drop(ts)
                if step == "drop" or not left[ts]:
                    model.pop(ts, None)
                    left.pop(ts, None)
            for ts in range(6):
                assert (ts in files) == (ts in model)
                assert [list(each) for each in files.read(ts)] == [
                    [record(ts, key) for key in keys] for keys in model.get(ts, ())
                ]
        for ts in range(6):
            files.drop(ts)
        assert files.bytes == 0
        assert list(place.iterdir()) == []
