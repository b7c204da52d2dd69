"""Rows that come in an order or with a content that a real TiKV was seldom seen to send."""

import pytest

from sluice.pump_service.capture.matcher import Matcher, MatcherTotals, UnmatchedCommitError
from sluice.pump_service.capture.run_files import RunFolder
from sluice.pump_service.capture.sorter import CommitSorter, LateChangeError, LostPrewriteError
from sluice.tidb import pb

Event, Row = pb.cdc.Event, pb.cdc.Event.Row
KEY, OTHER = b"t" + bytes(8) + b"_r1", b"t" + bytes(8) + b"_r2"
INITIALIZED = Row(type=Event.INITIALIZED)


def prewrite(start, value=b"v", key=KEY, op=Row.PUT, **more):
    return Row(type=Event.PREWRITE, start_ts=start, key=key, value=value, op_type=op, **more)


def commit(start, commit_ts, key=KEY, **more):
    return Row(
        type=Event.COMMIT, start_ts=start, commit_ts=commit_ts, key=key, op_type=Row.PUT, **more
    )


def committed(start, commit_ts, value=b"v", key=KEY):
    return Row(
        type=Event.COMMITTED,
        start_ts=start,
        commit_ts=commit_ts,
        key=key,
        value=value,
        op_type=Row.PUT,
    )


def rollback(start, key=KEY):
    return Row(type=Event.ROLLBACK, start_ts=start, key=key)


class Play:
    """A matcher from timestamp 10 on, and what comes out behind it."""

    def __init__(self, folder, memory_bytes):
        self.sorter = CommitSorter(RunFolder(folder / "runs"), memory_bytes)
        self.totals = MatcherTotals(self.sorter, memory_bytes)
        self.matcher = Matcher(b"t", b"u", 10, self.totals)

    def send(self, *rows):
        for row in rows:
            self.matcher.take_in(Event.Entries(entries=[row]))
            self.totals.relieve()
            self.sorter.relieve()

    def out(self, through=1000):
        return [
            (
                each.commit_ts,
                each.start_ts,
                change.key,
                change.value,
                change.old_value,
                change.is_delete,
            )
            for each in self.sorter.take(through)
            for change in each.changes
        ]


@pytest.fixture(params=[1 << 30, 1], ids=["in memory", "spilled"])
def play(request, tmp_path):
    return Play(tmp_path, request.param)


def test_a_prewrite_of_a_later_generation_wins_in_whatever_order_they_come(play):
    play.send(INITIALIZED, prewrite(20, b"two", generation=2), prewrite(20, b"one", generation=1))
    play.send(prewrite(20, b"a", OTHER, generation=1), prewrite(20, b"b", OTHER, generation=3))
    play.send(commit(20, 30), commit(20, 30, OTHER))
    assert [row[3] for row in play.out()] == [b"two", b"b"]


def test_a_later_generation_may_delete_what_an_earlier_one_put(play):
    play.send(INITIALIZED, prewrite(20, b"put", generation=1))
    play.send(prewrite(20, b"", op=Row.DELETE, old_value=b"old", generation=2), commit(20, 30))
    assert play.out() == [(30, 20, KEY, b"", b"old", True)]


def test_a_lock_that_is_rewritten_without_its_value_keeps_the_value(play):
    play.send(
        INITIALIZED, prewrite(20, b"value", old_value=b"old"), prewrite(20, b""), commit(20, 30)
    )
    assert play.out() == [(30, 20, KEY, b"value", b"old", False)]


def test_a_commit_before_its_prewrite_waits_for_the_end_of_the_scan(play):
    play.send(commit(20, 30), prewrite(20), INITIALIZED)
    assert play.out() == [(30, 20, KEY, b"v", b"", False)]


def test_a_commit_that_the_scan_has_already_is_there_once(play):
    play.send(commit(20, 30), committed(20, 30), INITIALIZED)
    assert play.out() == [(30, 20, KEY, b"v", b"", False)]


def test_a_rollback_before_its_prewrite_still_ends_it(play):
    play.send(rollback(20), prewrite(20), INITIALIZED)
    assert play.out() == []
    assert play.totals.prewrites == 0


def test_a_commit_at_or_below_the_checkpoint_is_skipped_and_ends_its_prewrite(play):
    play.send(INITIALIZED, prewrite(5), commit(5, 10), committed(3, 9))
    assert play.out() == []
    assert play.totals.prewrites == 0


def test_a_live_commit_without_a_prewrite_is_an_error(play):
    play.send(INITIALIZED)
    with pytest.raises(UnmatchedCommitError, match=KEY.hex()):
        play.send(commit(20, 30))


def test_a_commit_whose_prewrite_is_in_no_file_is_an_error_when_its_transaction_comes_out(tmp_path):
    play = Play(tmp_path, 1)
    play.send(INITIALIZED, prewrite(20, key=OTHER), commit(20, 30))
    with pytest.raises(LostPrewriteError, match=KEY.hex()):
        play.out()


def test_a_change_at_or_below_the_resolved_timestamp_is_an_error(play):
    play.send(INITIALIZED, prewrite(20))
    play.matcher.resolved_ts = 30
    with pytest.raises(LateChangeError):
        play.send(commit(20, 30))


def test_a_change_behind_what_was_handed_on_is_an_error(play):
    play.send(INITIALIZED, prewrite(20))
    play.out(50)
    with pytest.raises(LateChangeError):
        play.send(commit(20, 30))


def test_a_transaction_of_two_subscriptions_comes_out_as_one(play):
    other = Matcher(b"u", b"v", 10, play.totals)
    play.send(INITIALIZED, prewrite(20, b"here"), commit(20, 30))
    far = b"u" + KEY
    for row in (INITIALIZED, prewrite(20, b"there", far), commit(20, 30, far)):
        other.take_in(Event.Entries(entries=[row]))
    assert [(each.start_ts, len(list(each.changes))) for each in play.sorter.take(99)] == [(20, 2)]


def test_what_an_ended_subscription_had_open_is_forgotten(play):
    play.send(INITIALIZED, prewrite(20), prewrite(21, key=OTHER))
    play.matcher.close()
    assert (play.totals.prewrites, play.totals.bytes) == (0, 0)


def test_spilled_prewrites_of_a_rolled_back_transaction_give_their_files_back(tmp_path):
    play = Play(tmp_path, 1)
    play.send(INITIALIZED, prewrite(20), prewrite(20, key=OTHER), prewrite(21))
    play.send(rollback(20))
    assert 20 in play.sorter.prewrites, "the other key may still be committed"
    play.send(rollback(20, OTHER), commit(21, 30))
    assert 20 not in play.sorter.prewrites
    assert [row[1] for row in play.out()] == [21]
    assert play.sorter.prewrites.bytes == 0
    assert not list((tmp_path / "runs").iterdir())


def test_a_transaction_that_commits_although_its_prewrites_were_given_up_is_captured_again(
    tmp_path,
):
    play = Play(tmp_path, 1)
    play.send(INITIALIZED, prewrite(20), prewrite(20, key=OTHER), rollback(20), rollback(20))
    with pytest.raises(UnmatchedCommitError):
        play.send(commit(20, 30, OTHER))


def test_commits_that_wait_for_the_end_of_a_scan_count_in_memory_and_move_to_disk(tmp_path):
    limit, keys = 20_000, [b"t" + bytes(8) + b"_r%05d" % number for number in range(1_000)]
    play = Play(tmp_path, limit)
    most = 0
    for key in keys:
        play.matcher.take_in(Event.Entries(entries=[commit(20, 30, key), rollback(21, key)]))
        most = max(most, play.totals.bytes)
        play.totals.relieve()
        assert play.totals.bytes <= limit
    assert most > limit, "otherwise nothing has moved"
    for key in keys:
        play.send(prewrite(20, b"", key, Row.DELETE), prewrite(21, b"v", key))
    sizes = []
    add = play.sorter.add, play.sorter.expect
    play.sorter.add = lambda *a: (add[0](*a), sizes.append(play.sorter.bytes))
    play.sorter.expect = lambda *a, **more: (add[1](*a, **more), sizes.append(play.sorter.bytes))
    play.send(INITIALIZED)
    assert max(sizes) < limit + 1_000, "the end of the scan brings them all at once"
    assert play.out() == [(30, 20, key, b"", b"", True) for key in keys]
    assert (play.totals.prewrites, play.totals.bytes, play.sorter.prewrites.bytes) == (0, 0, 0)
    assert not list((tmp_path / "runs").iterdir())


def test_what_waits_for_the_end_of_a_scan_ends_with_its_subscription(tmp_path):
    play = Play(tmp_path, 1)
    play.send(commit(20, 30), rollback(21))
    play.matcher.take_in(Event.Entries(entries=[commit(22, 31)]))
    assert list((tmp_path / "runs").iterdir()) and play.totals.bytes
    play.matcher.close()
    assert play.totals.bytes == 0
    assert not list((tmp_path / "runs").iterdir())


def test_a_rollback_during_a_scan_does_not_give_up_what_the_scan_saw_committed(play):
    play.send(rollback(20), commit(20, 30, OTHER), prewrite(20, b"v", OTHER), INITIALIZED)
    assert [row[2] for row in play.out()] == [OTHER]


@pytest.mark.parametrize("times", [1, 2])
def test_a_rollback_elsewhere_gives_nothing_up_that_a_scan_under_way_may_commit(tmp_path, times):
    play = Play(tmp_path, 1)
    scanning, live = play.matcher, Matcher(b"u", b"v", 10, play.totals)
    there = b"u" + KEY[1:]

    def take(matcher, *rows):
        matcher.take_in(Event.Entries(entries=rows))
        play.totals.relieve()

    take(live, INITIALIZED)
    take(scanning, prewrite(20, b"", KEY, Row.DELETE))
    take(live, prewrite(20, b"v", there))
    if times == 1:
        take(scanning, commit(20, 30))
    for _ in range(2):  # TiKV may send one twice
        take(live, rollback(20, there))
    if times == 2:
        take(scanning, commit(20, 30))
    take(scanning, INITIALIZED)
    assert play.out() == [(30, 20, KEY, b"", b"", True)]
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("end", ["initialized", "closed"])
def test_what_was_rolled_back_during_a_scan_is_given_up_when_the_last_one_ends(tmp_path, end):
    play = Play(tmp_path, 1)
    live = Matcher(b"u", b"v", 10, play.totals)
    there = b"u" + KEY[1:]
    for rows in ([INITIALIZED], [prewrite(20, b"v", there)], [rollback(20, there)]):
        live.take_in(Event.Entries(entries=rows))
        play.totals.relieve()
    assert 20 in play.sorter.prewrites
    if end == "closed":
        play.matcher.close()
        play.matcher.close()
    else:
        play.send(INITIALIZED)
    assert 20 not in play.sorter.prewrites
    assert not list((tmp_path / "runs").iterdir())
