"""Compiled code matches rows as Python's matcher does, whatever comes in whatever order."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.pump_service.capture import kernel
from sluice.pump_service.capture.matcher import (
    Matcher,
    MatcherTotals,
    Prewrite,
    UnmatchedCommitError,
)
from sluice.pump_service.capture.run_files import RunFolder
from sluice.pump_service.capture.sorter import CommitSorter, LateChangeError
from sluice.pump_service.capture.transactions import KeyChange
from sluice.tidb import pb

pytestmark = pytest.mark.skipif(not kernel.IS_COMPILED, reason="there was no compiler")
ROW = pb.cdc.Event.Row
INDEX = b"t" + bytes(8) + b"_i" + bytes(3)
KEYS = [b"a", b"k", b"k2", b"z", b"t" + bytes(8) + b"_r1", INDEX, b""]
SMALL = st.sampled_from([b"", b"v", b"w" * 300])


@st.composite
def rows(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from([1, 1, 1, 2, 2, 2, 3, 4, 5, 0]))
    start_ts = draw(st.integers(1, 4))
    return ROW(
        type=kind,
        start_ts=start_ts,
        commit_ts=draw(st.integers(5, 14)) if kind in (2, 4) else 0,
        op_type=draw(st.integers(0, 2)),
        key=draw(st.sampled_from(KEYS)),
        value=draw(SMALL),
        old_value=draw(SMALL),
        txn_source=draw(st.sampled_from([0, 0, 7, 1 << 60])),
        generation=draw(st.sampled_from([0, 0, 3])),
        expire_ts_unix_secs=draw(st.sampled_from([0, 9])),
    )


def matcher(folder: str, *, is_live: bool) -> Matcher:
    sorter = CommitSorter(RunFolder(Path(folder) / "runs"), 1 << 30)
    sorter.taken_ts = 5
    found = Matcher(b"b", b"u", 6, MatcherTotals(sorter, 1 << 30))
    found.initialized = is_live
    found.resolved_ts = 8 if is_live else 6
    return found


def state(found: Matcher) -> Any:
    totals = found._totals
    pending = {
        identity: (each.source, each.changes, each.possible, each.size)
        for identity, each in totals.sorter._pending.items()
    }
    counts = totals.prewrites, totals.bytes, totals._by_start, totals.sorter.bytes
    return found.initialized, found._open, pending, sorted(totals.sorter._order), counts


@given(st.lists(st.lists(rows(), max_size=12), max_size=4), st.booleans())
def test_compiled_code_and_python_leave_the_same_behind(
    events: list[list[Any]], is_live: bool
) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        compiled, plain = matcher(one, is_live=is_live), matcher(other, is_live=is_live)
        for event in events:
            entries = pb.cdc.Event.Entries(entries=event)
            ends = []
            for take in (
                lambda entries=entries: compiled.take_in(entries),
                lambda entries=entries: plain.apply(entries.entries),
            ):
                try:
                    take()
                    ends.append(None)
                except (UnmatchedCommitError, LateChangeError) as error:
                    ends.append(str(error))
            assert ends[0] == ends[1]
            if ends[0] is not None:
                return
            assert state(compiled) == state(plain)
        for of in compiled._open.values():
            assert all(
                type(each) is Prewrite and type(each.change) is KeyChange for each in of.values()
            )


@given(st.lists(rows(), max_size=6), st.data())
def test_damaged_messages_stop_it_and_nothing_else(event: list[Any], data: st.DataObject) -> None:
    raw = bytearray(pb.cdc.Event.Entries(entries=event).SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    at, counts, commits = kernel.match(cut, 0, (b"", b"\xff" * 9), 0, {}, (KeyChange, Prewrite))
    assert 0 <= at <= len(cut) and len(commits) <= len(cut)
    assert sum(count for _, count, _ in counts) <= len(cut)


def test_a_plain_transaction_needs_no_python() -> None:
    keys = [b"k%d" % number for number in range(5)]
    event = [
        ROW(type=1, op_type=1, start_ts=3, key=key, value=b"v", old_value=b"o") for key in keys
    ]
    event += [ROW(type=2, op_type=1, start_ts=3, commit_ts=9, key=key) for key in keys]
    raw = pb.cdc.Event.Entries(entries=event).SerializeToString()
    prewrites: dict[int, dict[bytes, Any]] = {}
    types = (KeyChange, Prewrite)
    at, counts, commits = kernel.match(raw, 0, (b"", b"z"), 8, prewrites, types)
    changes = [KeyChange(key, b"v", b"o", False) for key in keys]
    assert (at, counts, commits) == (10, [], [(9, 3, 0, changes)])
    assert prewrites == {}


def test_types_that_are_no_tuples_are_refused() -> None:
    with pytest.raises(TypeError):
        kernel.match(b"", 0, (b"", b""), 0, {}, (int, Prewrite))
