"""The first page and `sluice status` read as many files of a long relay log as of a short one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.history.retain import archive_status
from sluice.etl.history.retain.summaries import refresh_summaries
from sluice.etl.operate.overview import overview
from sluice.etl.operate.status import status
from sluice.etl.settings import Settings, load_settings
from sluice.relay import RelayLog, WindowRecord
from sluice.relay.archive import Archive
from sluice.relay.storage import LocalStorage
from sluice.tidb import tso

HOURS = 3
END = tso.compose(1_789_999_200_000)
"""A full hour, so that both logs have folders for the same hours."""


def pipeline(folder: Path, windows: int) -> Settings:
    """A pipeline with so many windows an hour, and the summaries that the DAG `archive` keeps."""
    folder.mkdir()
    config = folder / "sluice.toml"
    config.write_text(
        '[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl ='
        f' "file://{folder}/relay"\n[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    settings = load_settings(config)
    relay = RelayLog.open(settings.relay.url)
    step = tso.span(3_600_000) // windows
    for number in range(HOURS * windows):
        lo = END - (HOURS * windows - number) * step
        relay.storage.replace(
            (one := WindowRecord(lo, lo + step, 1, "t", 1, 1, 1, 7)).path, one.to_json()
        )
    refresh_summaries(relay, Archive.open(settings.archive_url))
    return settings


def asked(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each kind of call reads each folder of the storage, for both."""
    found: Counter[str] = Counter()
    with monkeypatch.context() as patched:
        for name in ("read", "names", "names_after", "sizes", "open"):
            real = getattr(LocalStorage, name)

            def counted(
                self: LocalStorage,
                path: str,
                *more: Any,
                _real: Callable[..., Any] = real,
                _name: str = name,
                **named: Any,
            ) -> Any:
                found[f"{_name} {path.partition('/')[0]}"] += 1
                return _real(self, path, *more, **named)

            patched.setattr(LocalStorage, name, counted)
        status(settings)
        seen = overview(settings, 60.0)
        assert seen.relay.hi == END and seen.relay.bytes
        archive_status(settings)
    del found["read stop.json"]  # what waits for a server that is away looks there all the time
    return found


@pytest.mark.slow
def test_status_and_the_first_page_read_as_much_of_a_hundred_windows_as_of_three_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = (
        asked(pipeline(tmp_path / f"{number}", number), monkeypatch) for number in (3, 100)
    )
    assert short == long
    assert sum(long.values()) < 200  # each of the three reads the archive's summaries
