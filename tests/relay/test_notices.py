"""A cause has one message when it begins and one when it is over, whichever process meets it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sluice.relay.notices import CATCH_UP_MS, SENDING_TIMEOUT_MS, Notice, Notices
from sluice.relay.storage import open_storage

NOW = 1_790_000_000_000
REFUSED = Notice("refused:4f", "refused", "row 7 was refused", "sluice status", "overview")
LAG = Notice("behind", "behind", "6 min behind", "sluice top", "overview")
QUIET_LAG = replace(LAG, is_quiet=True)


@pytest.fixture
def notices(tmp_path):
    return Notices(open_storage(f"file://{tmp_path}/relay"))


def take(notices, now, *found, lasts=False):
    """The keys to send, those of what is over with a minus."""
    taken = notices.take(found, lambda _: not lasts, now)
    return [f"{'-' if one.over_ms else ''}{one.key}" for one in taken]


def test_each_cause_is_sent_once_while_it_lasts_and_once_when_it_is_over(notices):
    assert take(notices, NOW, REFUSED) == ["refused:4f"]
    notices.sent(["refused:4f"], NOW + 1)
    for later in (2, 300_000, 86_400_000):
        assert take(notices, NOW + later, REFUSED) == []
    assert take(notices, NOW + 86_500_000, REFUSED, LAG) == ["behind"]
    notices.sent(["behind"], NOW + 86_500_001)
    assert take(notices, NOW + 86_600_000, LAG) == ["-refused:4f"]
    notices.sent(["refused:4f"], NOW + 86_600_001)
    assert take(notices, NOW + 86_700_000, LAG) == []
    assert take(notices, NOW + 86_800_000, LAG, REFUSED) == ["refused:4f"], "it has come again"


def test_what_can_t_be_looked_at_is_not_taken_for_over(notices):
    take(notices, NOW, REFUSED)
    notices.sent(["refused:4f"], NOW)
    assert take(notices, NOW + 1, lasts=True) == []
    assert take(notices, NOW + 2, REFUSED) == []


def test_of_two_processes_one_sends_and_the_other_takes_over_when_it_died_over_it(notices):
    assert take(notices, NOW, REFUSED) == ["refused:4f"]
    assert take(notices, NOW + 1, REFUSED) == []
    assert take(notices, NOW + SENDING_TIMEOUT_MS - 1, REFUSED) == []
    assert take(notices, NOW + SENDING_TIMEOUT_MS, REFUSED) == ["refused:4f"]


def test_what_was_over_before_it_could_be_sent_is_no_news(notices):
    take(notices, NOW, REFUSED)
    assert take(notices, NOW + 1) == [], "another process is sending it"
    assert take(notices, NOW + SENDING_TIMEOUT_MS) == []
    assert notices.load() == ()


def test_an_end_whose_message_failed_is_sent_by_the_next_look(notices):
    take(notices, NOW, REFUSED)
    notices.sent(["refused:4f"], NOW)
    end = NOW + 300_000
    assert take(notices, end) == ["-refused:4f"]
    assert take(notices, end + SENDING_TIMEOUT_MS) == ["-refused:4f"]
    (left,) = notices.load()
    assert left.over_ms == end


def test_a_lag_that_follows_from_another_cause_is_no_message_unless_it_outlasts_it(notices):
    assert take(notices, NOW, REFUSED, QUIET_LAG) == ["refused:4f"]
    notices.sent(["refused:4f"], NOW)
    repaired = NOW + 7_200_000
    assert take(notices, repaired, REFUSED, QUIET_LAG) == []
    assert take(notices, repaired + 1, LAG) == ["-refused:4f"]
    notices.sent(["refused:4f"], repaired + 1)
    assert take(notices, repaired + CATCH_UP_MS - 1, LAG) == []
    assert take(notices, repaired + CATCH_UP_MS, LAG) == ["behind"]


def test_a_lag_that_was_caught_up_with_after_the_repair_is_never_mentioned(notices):
    take(notices, NOW, REFUSED, QUIET_LAG)
    notices.sent(["refused:4f"], NOW)
    assert take(notices, NOW + 300_000, QUIET_LAG) == ["-refused:4f"]
    notices.sent(["refused:4f"], NOW + 300_000)
    assert take(notices, NOW + 600_000) == []
    assert notices.load() == ()


def test_notices_that_release_1_wrote_are_known_to_be_sent(tmp_path, notices):
    folder = tmp_path / "relay" / "notices"
    folder.mkdir(parents=True)
    written = {
        "key": "behind", "kind": "behind", "text": "6 min behind", "command": "sluice top",
        "page": "overview", "since_ms": 1, "seen_ms": 2, "sending_ms": 0, "told_ms": 3,
        "over_ms": 0, "is_quiet": False, "token": "0123456789ab",
    }  # fmt: skip
    (folder / "000000000001.json").write_text(json.dumps([written]) + "\n")
    assert [one.sent_ms for one in notices.load()] == [3]
    assert take(notices, NOW, LAG) == []
    kept = json.loads(max(folder.glob("*.json")).read_text())
    assert [one["told_ms"] for one in kept] == [3], "release 1 reads them, too"
