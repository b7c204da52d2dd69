"""Write a backlog of any size into the pumps: a recording's transactions at fresh timestamps.

The transactions are written again and again. Only for benchmarks: the changes are real, but the
same ones each time, so their old images are not what is downstream. `again` makes some of
sysbench's that can be applied all the same. Written over the fast path's own client side,
Prewrites first, then their Commits with timestamps that PD gave after the pump had acknowledged
the Prewrites.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sluice.devstack.recording import Recording
from sluice.pump_service.grpc_fastpath import FastPathClient
from sluice.tidb import pb, tso
from sluice.tidb.binlog_kinds import PREWRITE
from sluice.tidb.codec.varint import encode_uvarint
from sluice.tidb.rpc import open_channel

_MAX_PAYLOAD = 15_000  # one frame of the lane's client
_GROUP = 256
_TEXT = re.compile(rb"\d{11}(?:-\d{11}){4,9}")  # what sysbench fills its columns with


class Timestamps:
    """Fresh timestamps (TSO) from PD, many a request."""

    def __init__(self, pd_url: str, cluster_id: int) -> None:
        self._channel = open_channel(pd_url)
        self._cluster_id = cluster_id
        self._asked: queue.SimpleQueue[pb.pd.TsoRequest | None] = queue.SimpleQueue()
        call = self._channel.stream_stream(
            "/pdpb.PD/Tso",
            request_serializer=pb.pd.TsoRequest.SerializeToString,
            response_deserializer=pb.pd.TsoResponse.FromString,
        )
        self._answers = call(iter(self._asked.get, None))

    def take(self, count: int) -> Sequence[int]:
        """Return `count` timestamps, ascending."""
        request = pb.pd.TsoRequest(count=count)
        request.header.cluster_id = self._cluster_id
        self._asked.put(request)
        answer = next(self._answers)
        last = tso.compose(answer.timestamp.physical, answer.timestamp.logical)
        return range(last - count + 1, last + 1)

    def close(self) -> None:
        """End the stream, and close the channel."""
        self._asked.put(None)
        self._channel.close()


def values(recording: Recording, after_ts: int) -> list[tuple[bytes, int]]:
    """Return (prewrite_value, row changes) of the recording's transactions after `after_ts`.

    They are in the order of their commits.
    """
    commits = {
        start: found.commit_ts
        for start, found in recording.transactions().items()
        if found.commit_ts > after_ts
    }
    found = []
    for record in recording.records():
        if (
            record.tp == PREWRITE
            and record.start_ts in commits
            and len(record.payload) < _MAX_PAYLOAD
        ):
            binlog = pb.binlog.Binlog.FromString(record.payload)
            if not binlog.ddl_job_id:
                value = pb.binlog.PrewriteValue.FromString(binlog.prewrite_value)
                found.append(
                    (
                        commits[record.start_ts],
                        binlog.prewrite_value,
                        sum(len(mutation.sequence) for mutation in value.mutations),
                    )
                )
    return [(value, changes) for _, value, changes in sorted(found)]


def again(wanted: Sequence[tuple[bytes, int]], times: int) -> list[tuple[bytes, int]]:
    """Return sysbench's transactions `times` times more, to be applied behind themselves.

    As many rows come as go, which are the same rows, and each time the digits in their texts are
    others, but in the end as they are in `wanted`. [] if this isn't such traffic.
    """
    if not all(_TEXT.search(value) and _comes_to_the_same(value) for value, _ in wanted):
        return []
    turns = [1 + number % 9 for number in range(times - 1)] + [0]
    return [pair for turn in turns[-times:] for pair in _turned(wanted, turn)] if times else []


def _comes_to_the_same(value: bytes) -> bool:
    mutations = pb.binlog.PrewriteValue.FromString(value).mutations
    return all(len(mutation.inserted_rows) == len(mutation.deleted_rows) for mutation in mutations)


def _turned(wanted: Sequence[tuple[bytes, int]], turn: int) -> Iterator[tuple[bytes, int]]:
    digits = bytes.maketrans(b"0123456789", bytes(48 + (digit + turn) % 10 for digit in range(10)))
    for value, changes in wanted:
        yield _TEXT.sub(lambda found: found[0].translate(digits), value), changes


class Written(NamedTuple):
    """Result of writing to the pumps.

    `last` is the last commit_ts (TSO), `bytes` those of the binlogs.
    """

    transactions: int
    last: int
    bytes: int


def write(
    pumps: Sequence[str],
    timestamps: Timestamps,
    cluster_id: int,
    wanted: Sequence[tuple[bytes, int]],
    changes: int,
) -> Written:
    """Write at least so many row changes to the pumps ("host:port") in turn."""
    head = b"\x08" + encode_uvarint(cluster_id) + b"\x12"
    endless = itertools.cycle(wanted)
    written = size = last = 0
    with contextlib.ExitStack() as stack:
        lanes = []
        for address in pumps:
            host, port = address.rsplit(":", 1)
            lanes.append(stack.enter_context(contextlib.closing(FastPathClient(host, int(port)))))
        for lane in itertools.cycle(lanes):
            group: list[bytes] = []
            while len(group) < _GROUP and changes > 0:
                value, inside = next(endless)
                group.append(value)
                changes -= inside
            starts = timestamps.take(len(group))
            size += _send(
                lane, head, (_prewrite(start, value) for start, value in zip(starts, group))
            )
            commits = timestamps.take(len(group))
            size += _send(
                lane, head, (_commit(start, commit) for start, commit in zip(starts, commits))
            )
            written += len(group)
            last = commits[-1]
            if changes <= 0:
                return Written(written, last, size)
    raise AssertionError("unreachable")


def _prewrite(start: int, value: bytes) -> bytes:
    return (
        b"\x08\x00\x10"
        + encode_uvarint(start)
        + b"\x18\x00\x2a"
        + encode_uvarint(len(value))
        + value
    )


def _commit(start: int, commit: int) -> bytes:
    return b"\x08\x01\x10" + encode_uvarint(start) + b"\x18" + encode_uvarint(commit)


def _send(lane: FastPathClient, head: bytes, payloads: Iterator[bytes]) -> int:
    """Send the payloads, and return their bytes, which the pump has synced."""
    calls = list(payloads)
    waiting = set(lane.send([head + encode_uvarint(len(payload)) + payload for payload in calls]))
    while waiting:
        for stream, error in lane.receive():
            if error:
                raise RuntimeError(f"a pump refused a binlog: {error}")
            waiting.remove(stream)
    return sum(map(len, calls))


def load(directory: Path) -> tuple[Recording, list[tuple[bytes, int]]]:
    """Return a recording and the values of its traffic after its first snapshot.

    Of all its traffic if it has no snapshot.
    """
    recording = Recording(directory)
    first = min((label.ts for label in recording.labels), default=0)
    return recording, values(recording, first)
