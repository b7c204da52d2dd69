"""What the relay log lets go: only what every known consumer has passed by the time that is kept."""

from __future__ import annotations

import pytest
from relaykit import BASE, HOUR, land

from etl.apply._relay_upkeep import RelayUpkeep
from etl.settings import Relay, SettingsError, parse_settings
from relay import RelayCorruptError, RelayLog
from relay.retention import Consumers, keep_ms


@pytest.fixture
def log(tmp_path):
    log = RelayLog.open(tmp_path.as_uri())
    for n in range(6):
        land(log, BASE + n * HOUR, BASE + (n + 1) * HOUR, BASE + n * HOUR + 1)
    return log


def _starts(log):
    return [(window.lo - BASE) // HOUR for window in log.windows(log.first().lo)]


def _never():
    return False


def test_only_what_every_consumer_has_passed_by_the_time_to_keep_goes(log):
    consumers = Consumers(log)
    consumers.note("one", BASE + 5 * HOUR, "db:3306")
    consumers.note("two", BASE + 3 * HOUR, "files in /f")
    assert consumers.purge(keep_ms("1h"), _never) == (2, "two")
    assert _starts(log) == [2, 3, 4, 5]
    assert log.read(log.windows(BASE + 2 * HOUR)).num_rows == 4
    consumers.note("two", BASE + 5 * HOUR, "files in /f")
    assert consumers.purge(keep_ms("2h"), _never)[0] == 1
    assert _starts(log) == [3, 4, 5]


def test_while_no_consumer_is_known_or_one_can_t_be_read_nothing_goes(log):
    consumers = Consumers(log)
    assert consumers.purge(keep_ms("1h"), _never) == (0, "")
    consumers.note("one", BASE + 5 * HOUR, "db:3306")
    log.storage.replace("consumers/two.json", b"{")
    with pytest.raises(RelayCorruptError, match=r"two\.json"):
        consumers.purge(keep_ms("1h"), _never)
    assert _starts(log) == list(range(6))


def test_removing_stops_when_it_is_told_to_and_leaves_a_whole_chain(log):
    consumers = Consumers(log)
    consumers.note("one", BASE + 6 * HOUR, "db:3306")
    asked = []

    def after_two():
        asked.append(1)
        return len(asked) > 2

    assert consumers.purge(keep_ms("1h"), after_two)[0] == 2
    assert _starts(log) == [2, 3, 4, 5]


@pytest.mark.parametrize("look", [lambda log: log.first(), lambda log: log.find(BASE + 1)], ids=["first", "find"])
def test_a_window_that_is_removed_between_a_listing_and_the_look_at_it_is_not_missed(log, monkeypatch, look):
    real, purged, other = log.next, [], RelayLog.open(log.url)

    def next_window(lo):
        if lo == BASE and not purged:
            purged.append(other.purge(BASE + 2 * HOUR))
        return real(lo)

    monkeypatch.setattr(log, "next", next_window)
    assert look(log).lo == BASE + 2 * HOUR
    assert purged == [2]


def _upkeep(log, keep):
    upkeep = RelayUpkeep(log, Relay(log.url, keep).keep_ms, "db:3306")
    upkeep.at(BASE + 5 * HOUR)
    upkeep._thread.join(60)
    upkeep.close()
    return upkeep


def test_the_pipeline_says_how_far_it_is_and_removes_what_keep_lets_go(log):
    _upkeep(log, "2h")
    assert list(Consumers(log).positions().values()) == [BASE + 5 * HOUR]
    assert _starts(log) == [3, 4, 5]


def test_without_keep_the_pipeline_says_how_far_it_is_and_removes_nothing(log):
    _upkeep(log, "")
    assert len(Consumers(log).positions()) == 1
    assert _starts(log) == list(range(6))


def test_upkeep_that_fails_is_logged_and_never_stops_applying(log, caplog):
    log.storage.replace("consumers/other.json", b"{")
    _upkeep(log, "1h")
    assert "other.json" in caplog.text
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
    assert (keep_ms("7d"), keep_ms("36h"), keep_ms("90m"), keep_ms("")) == (604_800_000, 129_600_000, 5_400_000, 0)
