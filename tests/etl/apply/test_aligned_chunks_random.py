"""Chunks of random histories, at random moments, into a damaged downstream: each leaves its range
exactly as it is upstream at the checkpoint, and after the last one the whole table is.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.etl.apply import run_apply
from sluice.etl.apply._aligned_chunks import AlignedChunkApplier
from sluice.relay import AlignedChunk, TableRepair
from tests.etl.apply.test_apply_random import MODES, fresh, settings_for
from tests.etl.chunk_model import Cut, Told, cut, damage, found, make_ready
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.random_history import TABLES
from tests.examples import examples

pytestmark = pytest.mark.slow


@MODES
@settings(
    max_examples=examples(8),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.integers(0, 2**32),
    st.lists(st.integers(1, 30), min_size=1, max_size=3),
    st.sampled_from([5, 100_000]),
)
def test_after_each_chunk_its_range_is_as_upstream_and_after_the_last_the_table_is(
    mariadb: MariaDBServer, mode: str, seed: int, sizes: list[int], max_rows: int
) -> None:
    rng = random.Random(seed)
    told = Told.of(seed, rng.randint(10, 80))
    last = told.history.transactions[-1][0]
    began = told.history.transactions[rng.randrange(len(told.history.transactions) // 2)][0]
    with contextlib.closing(fresh(mariadb)) as connection, tempfile.TemporaryDirectory() as folder:
        relay = told.history.land(f"file://{folder}", sizes)
        config = settings_for(mariadb, f"file://{folder}", max_rows, mode)
        run_apply(config, until_ts=began, run_seconds=240, prepare=local_preparer(config))
        names = rng.sample(list(TABLES), rng.randint(1, 3))
        for name in names:
            damage(connection, name, rng)
        pieces = [piece for name in names for piece in cut(name, rng)]
        rng.shuffle(pieces)
        moments = sorted(rng.sample(range(began, last), min(len(pieces), last - began)))
        asked = {}
        for number, (at_ts, piece) in enumerate(zip(moments, pieces)):
            asked[at_ts] = piece
            make_ready(relay, told, piece, at_ts, number, is_whole=True)
        relay.aligned_chunks.begin_repair(
            TableRepair("job", "job", tuple(TABLES[name].id for name in names))
        )
        kept = AlignedChunkApplier.apply
        done = []

        def keep(self: AlignedChunkApplier, aligned_chunk: AlignedChunk, *rest: Any) -> None:
            kept(self, aligned_chunk, *rest)
            piece = asked[aligned_chunk.at_ts]
            assert found(connection, piece) == told.expected(aligned_chunk.at_ts, piece), (
                piece,
                aligned_chunk,
            )
            done.append(aligned_chunk.at_ts)

        with mock.patch.object(AlignedChunkApplier, "apply", keep):
            run_apply(config, until_ts=last, run_seconds=240, prepare=local_preparer(config))
        assert done == moments
        whole = set(TABLES) - {piece.table for piece in pieces[len(moments) :]}
        for name in whole:
            assert found(connection, Cut(name)) == told.expected(last, Cut(name)), name
