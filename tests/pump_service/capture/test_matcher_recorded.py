"""The transactions that come out of a real TiKV's events, against a model that reads the same
events naively.
"""

from collections import defaultdict
from pathlib import Path

import pytest

from sluice.pump_service.capture.matcher import Matcher, MatcherTotals
from sluice.pump_service.capture.run_files import RunFolder
from sluice.pump_service.capture.sorter import CommitSorter
from sluice.tidb import pb
from sluice.tidb.codec.memcomparable import decode_bytes
from tests import recorded_changes

Event = pb.cdc.Event
Answer = dict[tuple[int, int], dict[bytes, tuple[bytes, bytes, bool]]]


def model(name: str) -> Answer:
    """Return all transactions of a recording: each commit with the values of whatever named its
    start_ts and key.
    """
    values: dict[tuple[int, bytes], tuple[bytes, bytes, bool]] = {}
    commits = set()
    for record in recorded_changes.read(name):
        if record.kind != "E":
            continue
        for event in pb.cdc.ChangeDataEvent.FromString(record.payload).events:
            for row in event.entries.entries:
                if row.key[:1] == b"t" and row.key[9:11] == b"_i":
                    continue
                if row.type in (Event.PREWRITE, Event.COMMITTED) and (
                    row.value or row.op_type == Event.Row.DELETE
                ):
                    values[row.start_ts, row.key] = (
                        row.value,
                        row.old_value,
                        row.op_type == Event.Row.DELETE,
                    )
                if row.type in (Event.COMMIT, Event.COMMITTED):
                    commits.add((row.commit_ts, row.start_ts, row.key))
    answer: Answer = defaultdict(dict)
    for commit_ts, start_ts, key in commits:
        answer[commit_ts, start_ts][key] = values[start_ts, key]
    return answer


class Replay:
    """Play a recording into matchers, one a subscription, and take what the frontier allows at
    every mark.
    """

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self.sorter = CommitSorter(RunFolder(folder), memory_bytes)
        self.totals = MatcherTotals(self.sorter, memory_bytes)
        self.of: dict[tuple[int, int, int], Matcher] = {}
        self.ranges: dict[tuple[bytes, bytes], Matcher] = {}
        self.taken: Answer = {}
        self.frontiers: list[int] = []

    def play(self, name: str) -> None:
        for record in recorded_changes.read(name):
            if record.kind == "Q":
                self.register(record.stream, pb.cdc.ChangeDataRequest.FromString(record.payload))
            elif record.kind == "E":
                self.receive(record.stream, pb.cdc.ChangeDataEvent.FromString(record.payload))
            elif record.kind == "M" and self.ranges:
                self.take()

    def register(self, stream: int, request: pb.cdc.ChangeDataRequest) -> None:
        start = decode_bytes(request.start_key)[0] if request.start_key else b""
        end = decode_bytes(request.end_key)[0] if request.end_key else b"\xff" * 9
        matcher = Matcher(start, end, request.checkpoint_ts, self.totals)
        for other in [pair for pair in self.ranges if pair[0] < end and start < pair[1]]:
            old = self.ranges.pop(other)
            assert old.resolved_ts <= request.checkpoint_ts or other != (start, end)
        self.ranges[start, end] = matcher
        self.of[stream, request.region_id, request.request_id] = matcher

    def receive(self, stream: int, message: pb.cdc.ChangeDataEvent) -> None:
        for event in message.events:
            matcher = self.of.get((stream, event.region_id, event.request_id))
            if matcher is None:
                continue
            if event.HasField("error"):
                matcher.close()
                del self.of[stream, event.region_id, event.request_id]
            elif event.HasField("resolved_ts"):
                self.resolve(matcher, event.resolved_ts)
            else:
                matcher.take_in(event.entries)
        resolved = message.resolved_ts
        for (of_stream, region, request_id), matcher in list(self.of.items()):
            if (
                of_stream == stream
                and region in resolved.regions
                and resolved.request_id in (0, request_id)
            ):
                self.resolve(matcher, resolved.ts)
        self.totals.relieve()
        self.sorter.relieve()

    def resolve(self, matcher: Matcher, ts: int) -> None:
        if matcher.initialized:
            matcher.resolved_ts = max(matcher.resolved_ts, ts)

    def take(self) -> None:
        frontier = min(matcher.resolved_ts for matcher in self.ranges.values())
        self.frontiers.append(frontier)
        order = []
        for each in self.sorter.take(frontier):
            order.append((each.commit_ts, each.start_ts))
            assert order[-1] not in self.taken
            changes = list(each.changes)
            assert list(each.changes) == changes, "readable again"
            assert [change.key for change in changes] == sorted({change.key for change in changes})
            self.taken[order[-1]] = {
                change.key: (change.value, change.old_value, change.is_delete) for change in changes
            }
        assert order == sorted(order)


@pytest.mark.parametrize("memory_bytes", [1 << 30, 2000], ids=["in memory", "spilled"])
@pytest.mark.parametrize("name", recorded_changes.NAMES)
def test_the_transactions_of_a_real_tikv_come_out_whole_once_and_in_order(
    name, memory_bytes, tmp_path
):
    replay = Replay(tmp_path / "runs", memory_bytes)
    replay.play(name)
    expected = model(name)
    frontier = replay.frontiers[-1]
    assert replay.taken == {each: found for each, found in expected.items() if each[0] <= frontier}
    replay.sorter.taken_ts = 0
    left = {
        (each.commit_ts, each.start_ts): {
            c.key: (c.value, c.old_value, c.is_delete) for c in each.changes
        }
        for each in replay.sorter.take((1 << 64) - 1)
    }
    assert {**replay.taken, **left} == expected
    assert len(set(replay.frontiers)) > 1
