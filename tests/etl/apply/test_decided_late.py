"""A decision counts as long as the transaction isn't committed: also for a batch that is prepared
already, or being written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.etl.apply import run_apply
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from sluice.relay import SKIP, Override
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, table

ITEM = table(11, "item", "id int", "v int", primary="id")


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_a_transaction_that_is_skipped_while_its_batch_is_prepared_is_left_out(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(ITEM, "CREATE TABLE `item` (`id` int primary key, `v` int)")
    story.insert(ITEM, {"id": 1, "v": 1})
    story.insert(ITEM, {"id": 2, "v": 2})
    skipped = story._ts
    story.insert(ITEM, {"id": 3, "v": 3})
    settings = Settings(
        Upstream("unused"), Relay(story._url), mariadb.downstream, apply=Apply(mode, 2, 10_000)
    )
    prepare = local_preparer(settings)
    calls = 0

    def meanwhile(windows: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
        nonlocal calls
        calls += 1
        if calls == 1:
            story._relay.overrides.add(Override(skipped, SKIP, by="ann"))
        yield from prepare(windows)

    summary = run_apply(settings, until_ts=story._ts, run_seconds=240, prepare=meanwhile)
    assert story.rows("item") == [(1, 1), (3, 3)]
    assert (calls, summary.retries) == (2, 0)
    assert skipped in story._relay.overrides.used_ms()
