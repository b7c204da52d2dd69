"""Whoever waits for windows of a relay log is told on the same host, and nobody else is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.relay import wakeup as bell
from sluice.relay.wakeup import WakeupSocket, notify

URL = "file:///a/relay/log"
_LONG_S = 60.0


@pytest.fixture(autouse=True)
def folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    found = tmp_path_factory.mktemp("b")
    monkeypatch.setattr(bell.tempfile, "gettempdir", lambda: str(found))
    yield found / f"sluice-{os.getuid()}"


def heard(waiting: WakeupSocket, seconds: float = _LONG_S) -> bool:
    waiting.wait(seconds)
    waiting.found()
    return waiting.is_reliable


def test_everybody_who_waits_for_a_log_is_told_and_only_they() -> None:
    with contextlib.closing(WakeupSocket(URL)) as one, contextlib.closing(WakeupSocket(URL)) as two:
        with contextlib.closing(WakeupSocket(f"{URL}/other")) as other:
            notify(URL)
            assert heard(one)
            assert heard(two)
            assert not heard(other, 0)
        assert not heard(one, 0), "it rings once"


def test_it_rings_for_who_comes_to_wait_later() -> None:
    with contextlib.closing(WakeupSocket(URL)) as waiting:
        notify(URL)
        notify(URL)
        assert heard(waiting)


def test_who_is_to_stop_waits_no_longer() -> None:
    with contextlib.closing(WakeupSocket(URL)) as waiting:
        waiting.wake()
        waiting.wait(_LONG_S)
    waiting.wake()


def test_who_was_killed_is_forgotten(folder: Path) -> None:
    waiting = WakeupSocket(URL)
    waiting._socket.close()  # as the end of a process does: the name stays
    [name] = folder.glob("*/*")
    notify(URL)
    assert not name.exists()
    waiting.close()


@pytest.mark.parametrize("mode", [0o777, 0o750])
def test_a_folder_that_others_can_write_to_is_not_used(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with contextlib.closing(WakeupSocket(URL)) as waiting:
        notify(URL)
        assert not heard(waiting, 0)
        assert list(folder.iterdir()) == []


def test_without_a_folder_nobody_is_told_and_nobody_fails(folder: Path) -> None:
    folder.write_bytes(b"")
    with contextlib.closing(WakeupSocket(URL)) as waiting:
        notify(URL)
        assert not heard(waiting, 0)
