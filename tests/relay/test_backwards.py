"""The past is read backwards as it is forwards, and no further than one asks."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from sluice.relay import RelayGapError, RelayLog, WindowLog
from sluice.relay.archive import Archive, ArchiveLog
from sluice.relay.window import window_path
from tests.relay.archivekit import archive_all
from tests.relay.relaykit import BASE, HOUR, land

ENDS = [BASE + n * HOUR // 3 for n in range(40)]
"""Of windows, through midnight."""


@pytest.fixture
def relay(tmp_path: Path) -> RelayLog:
    log = RelayLog.open((tmp_path / "relay").as_uri())
    for n, (lo, hi) in enumerate(pairwise(ENDS)):
        land(log, lo, hi, *([lo + 5, hi] if n % 3 else []))
    return log


@pytest.fixture
def archive(relay: RelayLog, tmp_path: Path) -> ArchiveLog:
    made = Archive.open((tmp_path / "archive").as_uri())
    archive_all(relay, made, (1, 7, 3))
    return ArchiveLog(made.storage)


@pytest.mark.parametrize("kind", ["relay", "archive"])
def test_backwards_gives_the_same_windows_as_forwards(
    kind: str, request: pytest.FixtureRequest
) -> None:
    log: WindowLog = request.getfixturevalue(kind)
    moments = [
        0,
        ENDS[0],
        ENDS[0] + 1,
        ENDS[7],
        ENDS[7] - 1,
        ENDS[30] + 9,
        ENDS[-1],
        ENDS[-1] + HOUR,
        1 << 62,
    ]
    for after in moments:
        for through in moments:
            if after < through:
                assert (
                    list(log.backwards(through, after)) == list(log.windows(after, through))[::-1]
                )


def test_a_record_that_is_missing_in_the_middle_is_named_and_those_that_were_purged_are_not(
    relay: RelayLog,
) -> None:
    relay.purge(ENDS[4])
    assert [window.lo for window in relay.backwards(1 << 62)] == ENDS[4:-1][::-1]
    relay.storage.remove(window_path(ENDS[20]))
    with pytest.raises(RelayGapError, match=f"no window begins at {ENDS[20]}"):
        list(relay.backwards(1 << 62))


def test_of_an_archived_window_some_tables_are_read_alone(archive: ArchiveLog) -> None:
    window = next(found for found in archive.backwards(1 << 62) if found.parts)
    assert archive.only(window, {7}) == window
    assert archive.only(window, {8}).parts == ()
    assert archive.bounds() == (ENDS[0], ENDS[-1])
