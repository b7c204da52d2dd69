import asyncio
import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.devstack.tidb.oracle import Oracle, OracleError
from sluice.tidb.tso import compose, logical, physical_ms
from tests.examples import examples

# Commit timestamps as clusters make them: runs of consecutive logicals, now and then a new
# millisecond.
gaps = st.lists(
    st.one_of(st.integers(1, 3), st.integers(1 << 18, 1 << 22)), min_size=1, max_size=40
)


def commits_from(steps, first=compose(1_700_000_000_000, 5)):
    found = [first]
    for step in steps:
        found.append(found[-1] + step)
    return found


@settings(max_examples=examples(200), deadline=None)
@given(gaps, st.data())
def test_replay_timestamps_stay_below_every_unacknowledged_prewrite_and_never_repeat_recorded_ones(
    steps, data
):
    commits = commits_from(steps)
    starts = {c - 1 for c in commits} - set(commits)
    oracle = Oracle(ceiling=min(starts | set(commits)), clock=lambda: 0.0)
    oracle.begin_replay(commits, starts)
    waiting, released, last = list(commits), [], oracle.last
    used = starts | set(commits)
    while waiting:
        for _ in range(data.draw(st.integers(0, 3))):
            count = data.draw(st.integers(1, 5))
            ts = oracle.try_take(count)
            if ts is None:
                continue
            batch = range(ts - count + 1, ts + 1)
            assert batch[0] > last
            assert ts < min(waiting)
            assert physical_ms(batch[0]) == physical_ms(ts)
            assert not used.intersection(batch)
            last = ts
        acked = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        now = oracle.ack(acked)
        released += now
        assert now == sorted(now)
        for commit_ts in now:
            oracle.committed(commit_ts)
        assert all(c < min(waiting, default=1 << 63) for c in released)
    assert released == commits
    oracle.end_replay()
    assert oracle.try_take() > max(commits)


def test_timestamps_follow_commits_once_the_next_prewrite_is_in_a_later_millisecond():
    commits = [compose(1_700_000_000_000 + ms, 7) for ms in (0, 10, 20)]
    oracle = Oracle(ceiling=commits[0], clock=lambda: 0.0)
    oracle.begin_replay(commits)
    for n, commit_ts in enumerate(commits):
        for released in oracle.ack(commit_ts):
            oracle.committed(released)
        ts = oracle.try_take()
        assert ts > commit_ts
        assert n == 2 or ts < commits[n + 1]


def test_a_stalled_replay_goes_on_answering_so_that_pumps_can_start_again():
    commits = commits_from([1] * 20)  # no room between them at all
    oracle = Oracle(ceiling=commits[0], clock=lambda: 0.0)
    oracle.begin_replay(commits)
    for released in oracle.ack(commits[0]):
        oracle.committed(released)
    given_out = [oracle.try_take() for _ in range(10_000)]
    assert None not in given_out
    assert given_out[-1] < commits[1]


def test_no_room_is_an_error_after_the_time_out_and_a_late_acknowledgement_is_noticed():
    async def scenario():
        # In the very first logicals of a millisecond there is no reserve below.
        commits = [compose(1000, 2), compose(1000, 3), compose(1000, 9)]
        oracle = Oracle(base_ts=compose(1000, 1), clock=lambda: 0.0)
        oracle.begin_replay(commits)
        with pytest.raises(OracleError, match="prewrite no pump has acknowledged"):
            await oracle.take(timeout_s=0.05)
        waiter = asyncio.create_task(oracle.take(timeout_s=60))
        await asyncio.sleep(0.02)
        oracle.ack(commits[0])
        await asyncio.sleep(0.02)
        assert not waiter.done()
        oracle.ack(commits[1])
        assert await waiter == compose(1000, 4)

    asyncio.run(scenario())


def test_an_idle_cluster_keeps_time_but_never_reaches_the_recording():
    now = 0.0
    ceiling = compose(1_700_000_000_000)
    oracle = Oracle(ceiling=ceiling, clock=lambda: now)
    first = oracle.try_take()
    now = 60.0
    assert 59_000 <= physical_ms(oracle.try_take()) - physical_ms(first) <= 60_000
    for days in (1, 3, 10):
        now = days * 86400.0
        for _ in range(1000):
            assert oracle.try_take() < ceiling


def test_a_paced_replay_moves_time_between_commits():
    position = compose(1_700_000_000_500)
    commits = [compose(1_700_000_000_000), compose(1_700_000_005_000)]
    oracle = Oracle(ceiling=commits[0], clock=lambda: 0.0)
    oracle.begin_replay(commits, hint=lambda: position)
    oracle.ack(commits[0])
    assert oracle.try_take() == position
    position = compose(1_700_000_009_000)
    assert commits[0] < oracle.try_take() < commits[1]


def test_free_running_starts_at_the_wall_clock_and_is_strictly_increasing():
    oracle = Oracle()
    taken = [oracle.try_take(3) for _ in range(1000)]
    assert abs(physical_ms(taken[0]) - time.time() * 1000) < 60_000
    assert all(b - 2 > a for a, b in itertools.pairwise(taken))
    assert all(logical(ts) >= 2 for ts in taken)


def test_a_second_replay_would_turn_time_back_and_is_refused():
    oracle = Oracle(base_ts=compose(2000))
    with pytest.raises(OracleError, match="fresh stand-in cluster"):
        oracle.begin_replay([compose(1000)])
