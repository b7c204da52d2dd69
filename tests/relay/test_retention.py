"""Who reads the relay log says how far it is; a window that is removed meanwhile isn't missed."""

from __future__ import annotations

import pytest
from relaykit import BASE, HOUR, land

from sluice.etl.apply._consumer_position import ConsumerPosition
from sluice.etl.settings import SettingsError, parse_settings
from sluice.etl.settings.pauses import keep_ms
from sluice.relay import RelayLog
from sluice.relay.consumers import Consumers


@pytest.fixture
def log(tmp_path):
    log = RelayLog.open(tmp_path.as_uri())
    for n in range(6):
        land(log, BASE + n * HOUR, BASE + (n + 1) * HOUR, BASE + n * HOUR + 1)
    return log


def _starts(log):
    return [(window.lo - BASE) // HOUR for window in log.windows(log.first().lo)]


@pytest.mark.parametrize(
    "look", [lambda log: log.first(), lambda log: log.find(BASE + 1)], ids=["first", "find"]
)
def test_a_window_that_is_removed_between_a_listing_and_the_look_at_it_is_not_missed(
    log, monkeypatch, look
):
    real, purged, other = log.next, [], RelayLog.open(log.url)

    def next_window(lo):
        if lo == BASE and not purged:
            purged.append(other.purge(BASE + 2 * HOUR))
        return real(lo)

    monkeypatch.setattr(log, "next", next_window)
    assert look(log).lo == BASE + 2 * HOUR
    assert purged == [2]


def _upkeep(log):
    upkeep = ConsumerPosition(log, "db:3306")
    upkeep.set_position(BASE + 5 * HOUR)
    upkeep._thread.join(60)
    upkeep.close()


def test_the_pipeline_says_how_far_it_is_and_removes_nothing_itself(log):
    _upkeep(log)
    assert list(Consumers(log).positions().values()) == [BASE + 5 * HOUR]
    assert _starts(log) == list(range(6))


def test_upkeep_that_fails_is_logged_and_never_stops_applying(log, caplog, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Consumers, "note", full)
    _upkeep(log)
    assert "No space left" in caplog.text
    assert _starts(log) == list(range(6))


@pytest.mark.parametrize("text", ["7", "7w", "59m", "0d", "-1d", "1.5h", " 7d"])
def test_a_time_to_keep_without_a_unit_or_too_short_is_refused(text):
    document = {
        "upstream": {"pd-urls": "http://127.0.0.1:1"},
        "relay": {"url": "file:///r", "keep": text},
        "downstream": {"host": "db"},
    }
    with pytest.raises(SettingsError, match="keep"):
        parse_settings(document)


def test_spans():
    assert (keep_ms("7d"), keep_ms("36h"), keep_ms("90m"), keep_ms("")) == (
        604_800_000,
        129_600_000,
        5_400_000,
        0,
    )
