"""A relay log on a disk that is full: nothing is half landed, and it goes on once there is room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.errors import ours
from sluice.relay import RelayLog
from tests.relay.relaykit import BASE, batch, window
from tests.small_disk import small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, 2 << 20) as disk:
        yield disk


def land(log: RelayLog, lo: int) -> int:
    """A window with a change of 100 kB; where it ends."""
    part = log.write_part(
        lo, lo + 10, "t", 0, [batch([(lo + 1, 0)], row=os.urandom(100_000).hex().encode())]
    )
    assert part is not None
    log.commit(window(lo, lo + 10, [part], transactions=1, changes=1))
    return lo + 10


def test_a_window_that_does_not_fit_is_not_landed_and_fits_once_there_is_room(disk: Path) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    log, lo = RelayLog.open(f"file://{disk}/relay"), BASE
    with pytest.raises(OSError, match="No space left on device") as full:
        while True:
            lo = land(log, lo)
    assert lo > BASE
    assert ours(full.value).transient
    assert "make room" in ours(full.value).hint
    windows = list(log.windows(0))
    assert [each.lo for each in windows] == list(range(BASE, lo, 10))
    assert log.read(windows).num_rows == len(windows)
    ballast.unlink()
    end = land(log, lo)
    last = log.last()
    assert last is not None and last.hi == end
    assert log.read([last]).num_rows == 1
    log.clean_unreferenced()
    there = {
        str(path.relative_to(disk / "relay")) for path in (disk / "relay/parts").rglob("*.arrow")
    }
    assert there == {part.path for each in log.windows(0) for part in each.parts}
