"""Random histories that come as TiKV's changes end in the rows of their model downstream."""

from __future__ import annotations

import contextlib
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sluice.etl.apply import run_apply
from tests.etl.apply.test_apply_random import fresh, rows_of, settings_for
from tests.etl.captured_rows import CapturedRows
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.random_history import TABLES, History
from tests.examples import examples

NAMES = {table.id: name for name, table in TABLES.items()}


def capture(history: History, folder: Path, seed: int, memory_bytes: int) -> int:
    """Put what a capture makes of the history in its place; return how many changes there are."""
    captured = CapturedRows(folder, random.Random(seed), memory_bytes)
    captured.define(*TABLES.values())
    landed = captured.take(
        [
            (ts, [(TABLES[name], kind, row) for name, kind, row in changes])
            for ts, changes in history.transactions
        ]
    )
    history.transactions = [
        (ts, [(NAMES[table_id], kind, row) for table_id, kind, row in rows])
        for ts, rows in landed.items()
    ]
    return sum(map(len, landed.values()))


@pytest.mark.parametrize("mode", [pytest.param("atomic", marks=pytest.mark.slow), "parallel"])
@settings(
    max_examples=examples(10),
    deadline=None,
    phases=[Phase.generate],  # each example takes a second, and has its seed in its arguments
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(5, 120),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    memory_bytes=st.sampled_from([1, 10_000, 1 << 20]),
)
def test_any_captured_history_ends_like_the_model(
    mariadb: MariaDBServer, mode: str, seed: int, count: int, sizes: list[int], memory_bytes: int
) -> None:
    history = History(seed)
    history.grow(count)
    if not history.transactions:
        return
    with contextlib.closing(fresh(mariadb)) as connection, tempfile.TemporaryDirectory() as folder:
        capture(history, Path(folder), seed, memory_bytes)
        last = history.land(f"file://{folder}/relay", sizes).last()
        if last is not None:
            config = settings_for(mariadb, f"file://{folder}/relay", 100_000, mode)
            run_apply(config, until_ts=last.hi, run_seconds=240, prepare=local_preparer(config))
        for name in TABLES:
            assert rows_of(connection, name) == history.expected(name), name
