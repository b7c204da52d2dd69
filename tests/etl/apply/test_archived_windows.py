"""Windows of the archive, of which one may have been several, become the same steps as those that
were landed.
"""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sluice.etl.apply._adaptive_limits import AdaptiveLimits
from sluice.etl.apply._batch import WindowBatch
from sluice.etl.apply._prefetch import BatchPrefetcher
from sluice.etl.apply.replay_range import _ReadOnlyLog
from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare
from sluice.etl.changes.steps import ChangeError
from sluice.etl.downstream import Checkpoint
from sluice.etl.settings import Apply
from sluice.relay import SKIP, Override, RelayLog, WindowLog
from sluice.relay.archive import Archive, sync_overrides
from sluice.relay.archive.window_merging import MergeLimits
from tests.etl.partition_history import PartitionHistory
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.examples import examples
from tests.relay.archivekit import archive_all, merge_segments

_ALL = AdaptiveLimits(Apply(max_rows=2**60, max_bytes=2**60))
HYPOTHESIS = settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=4)
LIMITS = st.sampled_from(
    [MergeLimits(), MergeLimits(20), MergeLimits(200, 2_000), MergeLimits(joins=False)]
)


def steps(
    windows: WindowLog, after_ts: int, until_ts: int, shape: str = "net"
) -> list[tuple[Any, ...]]:
    """What applying the range is given to do; without the times it took.

    In the middle of a window the schema version is a guess, so there it isn't compared.
    """
    left_out = (
        {"timings_ms"} if windows.find(until_ts) is None else {"timings_ms", "schema_version"}
    )
    options = PrepareOptions(write_plan=shape)

    def prepared(batch: BatchPayload) -> Any:
        return prepare(
            windows.url, BatchPayload.from_json(json.loads(json.dumps(batch.to_json()))), options
        )

    ahead = BatchPrefetcher(_ReadOnlyLog(windows), prepared, _ALL, Checkpoint(after_ts), until_ts)
    found: list[tuple[Any, ...]] = []
    at = after_ts
    try:
        for batch in ahead.items(lambda: at >= until_ts):
            assert isinstance(batch, WindowBatch)
            for step in batch.steps(threading.Event()):
                detail = {
                    name: value
                    for name, value in step.detail.to_json().items()
                    if name not in left_out
                }
                place = step.kind, step.commit_ts, step.schema, step.table
                found.append((*place, detail, step.rows, step.changes, step.payload))
            at = batch.hi
    except ChangeError as error:  # a transaction that another one needs was skipped
        found.append(("error", str(error)))
    finally:
        ahead.stop()
    return found


def archived(relay: RelayLog, folder: str, sizes: list[int], limits: MergeLimits) -> Archive:
    archive = Archive.open(f"file://{folder}/archive")
    archive_all(relay, archive, sizes, limits)
    sync_overrides(relay.overrides, archive.overrides_of())
    return archive


@pytest.mark.parametrize("keyed", [False, True])
@HYPOTHESIS
@given(st.integers(0, 2**32), st.integers(5, 60), SIZES, SIZES, LIMITS, st.data())
def test_preparing_archived_windows_is_preparing_the_landed_ones_through_partition_ddl(
    keyed: bool,
    seed: int,
    count: int,
    sizes: list[int],
    segments: list[int],
    limits: MergeLimits,
    data: st.DataObject,
) -> None:
    history = PartitionHistory(seed, keyed)
    history.grow(count)
    history.settle()
    with tempfile.TemporaryDirectory() as folder:
        relay = history.land(f"file://{folder}/relay", sizes)
        if relay.last() is None:
            return
        moments = [relay.first().lo, *(commit_ts for commit_ts, _, _ in history.events)]
        if data.draw(st.booleans()):
            relay.overrides.add(Override(data.draw(st.sampled_from(moments[1:])), SKIP))
        archive = archived(relay, folder, segments, limits)
        after, until = sorted(
            data.draw(st.lists(st.sampled_from(moments), min_size=2, max_size=2, unique=True))
        )
        shape = data.draw(st.sampled_from(["net", "groups", "file_binlog"]))
        expected = steps(relay, after, until, shape)
        assert steps(archive.log, after, until, shape) == expected
        day = archive.first().day
        many = len(archive.catalogue.load(day).segments)
        merge_segments(archive, day, 0, data.draw(st.integers(1, many)), "merged")
        assert steps(archive.log, after, until, shape) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("name", "transactions"), [("ddl", 5)])
def test_preparing_archived_windows_is_preparing_the_landed_ones_of_a_real_cluster(
    tmp_path: Path, name: str, transactions: int
) -> None:
    relay = land(RECORDINGS / name, f"file://{tmp_path}/relay", transactions)
    archive = archived(relay, str(tmp_path), [50], MergeLimits())
    first, last = relay.first().lo, relay.last().hi
    assert sum(segment.windows for segment in archive.segments()) < len(list(relay.windows(0)))
    assert steps(archive.log, first, last) == steps(relay, first, last)
