"""Recordings of a real TiDB in the lake: every value as the cluster's own snapshots have it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from sluice.etl.history.lake import write_lake
from sluice.relay import RelayLog
from sluice.relay.storage import open_storage
from tests.etl.history.lake.replayed_lake import ReplayedLake
from tests.etl.relay_from_recording import RECORDINGS, land

MOVED = {
    "Edges.kl", "Edges.kx", "Edges.nc", "Edges.ncx",  # EXCHANGE PARTITION
    "Edges.pr", "shop.p", "shop.px",  # partitions dropped, truncated, exchanged
    "other.sw_b", "Edges.sw_",  # names that go from table to table, under which nothing is written
}  # fmt: skip
"""Tables of which DDL has moved or renamed rows, which no change tells."""
NOT_SHOWN = {
    "types.gen": {"b"},
    "shop.gc": {"b"},
    "Edges.gen": {"h", "up"},  # generated when they are read
    "shop.item": {"remark"},
    "shop.g2": {"remark"},
    "other.g2": {"remark"},  # added since
    "Edges.ch": {"tt", "jj"},
    "Edges.du": {"z"},
    "shop.hot": {"e2"},
    "Edges.df": {
        "b",
        "s",
        "tsnn",
        "e",
        "y",
        "bi",
        "dc",
        "d2",
        "ti",
        "dt",
        "nn",
        "tsn",
        "d",
        "nd",
        "ts",
    },
    "Edges.y2": {"it's %s", "s 2", "q2", "q3"},
}
CONTRADICTED = (
    "shop.typ", "Edges.ch",  # old values are what MODIFY and CHANGE made of them
    "Edges.du",  # while a column is dropped, TiDB sends old rows without it
)  # fmt: skip
"""What TiDB says a row was isn't what it said before."""


@pytest.mark.quick_cases("types", "ddl")
@pytest.mark.parametrize(
    ("recording", "labels"),
    [
        ("types", ["end"]),
        ("edges", ["a_exchange", "d_values", "f_end"]),
        ("ddl", ["a_two_items", "d_many", "f_end"]),
    ],
)
def test_replayed_the_lake_is_what_the_cluster_held(
    tmp_path: Path, recording: str, labels: list[str]
) -> None:
    relay = land(RECORDINGS / recording, f"file://{tmp_path}/relay", transactions=97)
    _archive(relay, tmp_path / "archive", windows_a_volume=5)
    for label in labels:
        lake = ReplayedLake(tmp_path / "archive", RECORDINGS / recording, label)
        assert [c for c in lake.contradictions if not c.startswith((*MOVED, *CONTRADICTED))] == []
        for table in lake.tables:
            if table in MOVED:
                assert lake.never_written(table) == [], table
            else:
                assert lake.differences(table) == []
                assert lake.not_shown(table) <= NOT_SHOWN.get(table, set()), table
    assert not list((tmp_path / "archive").glob("lake/_unreadable"))


def _archive(relay: RelayLog, archive: Path, windows_a_volume: int) -> None:
    archive.mkdir()
    first = relay.first()
    assert first is not None
    windows = iter(relay.windows(first.lo))
    written = []
    for number in itertools.count():
        segment = list(itertools.islice(windows, windows_a_volume))
        if not segment:
            break
        # A small buffer, so that files have several row groups
        written += write_lake(
            relay.storage, open_storage(f"file://{archive}"), segment, f"t{number}", 20_000
        )
    assert len({file.path for file in written}) == len(written)
    for file in written:
        assert (archive / file.path).stat().st_size == file.bytes
