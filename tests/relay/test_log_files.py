"""A log file gives back what was written, in order, whatever the changes are and however they are
cut.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from archivekit import archive_all
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from relaykit import BASE, window

from sluice.relay import PART_SCHEMA, RelayLog
from sluice.relay.archive import Archive, ArchiveLog, ArchiveSegment
from sluice.relay.archive.window_merging import MergeLimits
from tests.examples import examples

ROWS = st.tuples(
    st.integers(1, 6),  # how far behind the commit before; 0 is in the same transaction
    st.sampled_from([3, 7, 8, 2**40]),
    st.integers(0, 2),
    st.one_of(st.binary(max_size=40), st.sampled_from([b"\x08\x02" + b"x" * 3_000, b"y" * 60_000])),
)


def changes(rows: list[tuple[int, int, int, bytes]], from_ts: int) -> pa.RecordBatch:
    """A part's changes; several in a row of one commit timestamp are one transaction."""
    found: dict[str, list[object]] = {name: [] for name in PART_SCHEMA.names}
    commit_ts, position = from_ts, -1
    for step, table_id, kind, row in rows:
        commit_ts, position = (
            (commit_ts, position + 1) if step == 6 and position >= 0 else (commit_ts + step, 0)
        )
        values = (commit_ts, commit_ts - 1, position, table_id, 40 + kind, kind, row)
        for name, value in zip(PART_SCHEMA.names, values, strict=True):
            found[name].append(value)
    return pa.RecordBatch.from_pydict(found, schema=PART_SCHEMA)


def landed(url: str, windows: list[list[tuple[int, int, int, bytes]]]) -> RelayLog:
    log = RelayLog.open(url)
    lo = BASE
    for rows in windows:
        batch = changes(rows, lo)
        hi = (batch["commit_ts"][-1].as_py() if rows else lo) + 5
        part = log.write_part(lo, hi, "t", 0, [batch] if rows else [])
        log.commit(
            window(
                lo,
                hi,
                [part] if part else [],
                changes=len(rows),
                transactions=part.transactions if part else 0,
            )
        )
        lo = hi
    return log


@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.lists(ROWS, max_size=30), min_size=1, max_size=6),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.sampled_from(
        [MergeLimits(), MergeLimits(7), MergeLimits(50, 5_000), MergeLimits(joins=False)]
    ),
    st.sets(st.sampled_from([3, 7, 8, 2**40, 99])),
)
def test_the_archive_gives_back_every_change_in_order_whole_and_by_table(
    tmp_path_factory: pytest.TempPathFactory,
    windows: list,
    sizes: list[int],
    limits: MergeLimits,
    tables: set[int],
) -> None:
    folder = tmp_path_factory.mktemp("log")
    relay = landed(f"{folder.as_uri()}/relay", windows)
    archive = Archive.open(f"{folder.as_uri()}/archive")
    archive_all(relay, archive, sizes, limits)
    expected = relay.read(relay.windows(BASE))
    log = archive.log
    assert log.read(log.windows(BASE)).equals(expected)
    assert (log.first().lo, log.last().hi) == (BASE, relay.last().hi)
    some = log.for_tables(tables)
    wanted = pa.array(sorted(tables), pa.int64())
    read = some.read(some.windows(BASE))
    assert read.filter(pc.is_in(read["table_id"], wanted)).equals(
        expected.filter(pc.is_in(expected["table_id"], wanted))
    )
    assert [(w.lo, w.hi, w.ddls) for w in some.windows(BASE)] == [
        (w.lo, w.hi, w.ddls) for w in log.windows(BASE)
    ]
    for segment in archive.segments():
        assert ArchiveSegment.from_json(segment.to_json()) == segment
    assert sum(segment.changes for segment in archive.segments()) == expected.num_rows


def test_who_asks_for_one_large_table_reads_no_row_group_of_another(tmp_path):
    rows = [(1, 7 if i % 2 else 8, 0, b"%d" % i * 2_000) for i in range(500)]
    relay = landed(f"{tmp_path.as_uri()}/relay", [rows])
    archive = Archive.open(f"{tmp_path.as_uri()}/archive")
    archive_all(relay, archive)
    only = archive.log.for_tables([7])
    [one] = only.windows(BASE)
    assert set(only.read([one])["table_id"].to_pylist()) == {7}
    assert one.changes == 250
    [whole] = archive.log.windows(BASE)
    assert one.parts[0].bytes < 0.6 * whole.parts[0].bytes


GIANT = """
import resource, sys
sys.path[:0] = sys.argv[2:]
import pyarrow as pa
from relaykit import BASE, window
from sluice.relay import PART_SCHEMA, RelayLog
from sluice.relay.archive import Archive, write_log
from sluice.relay.archive.window_merging import MergeLimits

COUNT, SIZE = 24, 8 * 2**20

def batches():
    for i in range(COUNT):
        rows = pa.array([bytes([j % 251]) * (SIZE // 64) for j in range(64)], pa.large_binary())
        tables = [7 + j % 3 for j in range(64)]
        positions = range(i * 64, i * 64 + 64)
        columns = [[BASE + 1] * 64, [BASE] * 64, positions, tables, [1] * 64, [0] * 64]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, PART_SCHEMA)]
        yield pa.record_batch([*arrays, rows], PART_SCHEMA)

relay = RelayLog.open(sys.argv[1] + "/relay")
archive = Archive.open(sys.argv[1] + "/archive")
part = relay.write_part(BASE, BASE + 5, "t", 0, batches())
made = window(BASE, BASE + 5, [part], changes=COUNT * 64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
written = write_log(relay.storage, archive.storage, [made], "t", limits=MergeLimits(bytes=2 * SIZE))
archive.append(written.segment())
from sluice.relay import iter_parts
rows = at = 0
for batch in iter_parts(archive.storage, next(archive.log.windows(BASE)).parts):
    assert batch["position"].to_pylist() == list(range(rows, rows + batch.num_rows))
    rows += batch.num_rows
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_a_transaction_larger_than_memory_may_hold_is_archived_and_read_in_stretches(tmp_path):
    folders = [str(Path(__file__).parent), str(Path.cwd())]
    told = subprocess.run(
        [sys.executable, "-c", GIANT, tmp_path.as_uri(), *folders],
        capture_output=True,
        text=True,
        check=True,
    )
    rows, grown = map(int, told.stdout.split())
    assert rows == 24 * 64
    assert grown < 150, f"{grown} MiB for a transaction of 192 MiB in stretches of 16"


def test_an_archive_at_another_place_is_read_by_its_url_alone(tmp_path):
    relay = landed(f"{tmp_path.as_uri()}/relay", [[(1, 7, 0, b"a"), (6, 8, 1, b"b")]])
    archive_all(relay, Archive.open(f"{tmp_path.as_uri()}/archive"))
    (tmp_path / "archive").rename(tmp_path / "moved")
    moved = ArchiveLog.open(f"{tmp_path.as_uri()}/moved")
    assert moved.read(moved.windows(0))["row"].to_pylist() == [b"a", b"b"]
