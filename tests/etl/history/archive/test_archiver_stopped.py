"""Archivers and compactions as real processes: one stands still, another one does all of it, and
the first goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.etl.history.archive._pending import remove_abandoned
from sluice.relay import RelayLog
from sluice.relay.archive import Archive
from tests.etl.history.archive import stopped_archiver
from tests.etl.history.archive.archiving import Growing, differences, log_files, settings_of
from tests.etl.history.archive.stopped_archiver import archive, compact_all
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.stopped_work import Workshop

_WINDOWS = 3


@pytest.fixture(scope="module")
def landed(tmp_path_factory: pytest.TempPathFactory) -> RelayLog:
    return land(RECORDINGS / "orphans", tmp_path_factory.mktemp("landed").as_uri(), 40)


@pytest.fixture(scope="module")
def shop() -> Iterator[Workshop]:
    with Workshop(stopped_archiver.__name__) as shop:
        yield shop


@pytest.mark.slow
@pytest.mark.parametrize("work", [archive, compact_all])
def test_wherever_one_stands_still_while_another_does_all_nothing_is_lost_or_doubled(
    landed: RelayLog, shop: Workshop, tmp_path: Path, work: Callable[[str], None]
) -> None:
    alone = shop.start(work, (_begun(landed, tmp_path / "whole", work),), tmp_path / "steps")
    assert alone.ended() == "done"
    for stop in _some(len(alone.steps())):
        folder = tmp_path / str(stop)
        url = _begun(landed, folder, work)
        with shop.stopped(work, (url,), folder / "first", stop) as first:
            second = shop.start(work, (url,), folder / "second")
            assert second.ended() == "done", stop
            found = [_wrong(url, folder)]
            first.wake()
            assert first.ended() == "done", stop
        assert [*found, _wrong(url, folder)] == [[], []], stop
        assert _left_over(url, folder) == set(), stop


def _some(steps: int) -> list[int]:
    """Some of them: the steps are numbered as they come, so others when anything before them
    changes.
    """
    return list(range(1, steps + 1, max(1, steps // 8)))


def _begun(landed: RelayLog, folder: Path, work: Callable[[str], None]) -> str:
    """A relay log for that work; its URL."""
    folder.mkdir()
    growing = Growing(landed, folder.as_uri())
    growing.land(_WINDOWS)
    if work is compact_all:
        archive(folder.as_uri())
    return folder.as_uri()


def _wrong(url: str, folder: Path) -> list[str]:
    """What the archive has otherwise than the relay log, and files of it that are gone."""
    kept = Archive.open(settings_of(url).archive_url)
    named, there = log_files(kept, folder / "archive")
    return differences(RelayLog.open(url), kept) + sorted(named - there)


def _left_over(url: str, folder: Path) -> set[str]:
    """Files that no segment has, once what was begun and not finished has been swept."""
    kept = Archive.open(settings_of(url).archive_url)
    kept.sweep(0)
    remove_abandoned(kept, lambda: False, given_up_ms=0)
    named, there = log_files(kept, folder / "archive")
    return there - named
