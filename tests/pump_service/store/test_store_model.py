"""The store against a list: random writes, restarts, crashes, losses, failures, purges, reads."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sluice.pump_service.store import Record, Store, failpoints, indexer, store
from sluice.pump_service.store.errors import IndexDamagedError
from sluice.pump_service.store.segment import END_MAGIC, encode_record
from tests.examples import examples
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    commit,
    copy_live,
    eventually,
    fake,
    prewrite,
    pulled,
    rollback,
    window,
    write,
)

_MINUTE = 60_000 << 18


class StoreMachine(RuleBasedStateMachine):
    """Whether a rule can run must not depend on the store, whose threads have their own time: so
    there are no preconditions, and a rule that finds nothing to do does nothing.
    """

    @initialize(queue=st.sampled_from([3, 100_000]))
    def start(self, queue: int) -> None:
        indexer._RETRY_INTERVAL_S = 0.01
        store._FENCE_TIMEOUT_S = 0.2
        self.root = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.options = dataclasses.replace(
            OPTIONS, segment_limit=700, save_interval_s=0.005, kv_chan_cap=queue
        )
        self.life = 0
        self.store = Store.open(self.root / "0", self.options)
        self.ts = BASE
        self.used: set[int] = set()
        self.open: list[Record] = []
        self.done: dict[int, Record] = {}
        """commit_ts -> Prewrite"""
        self.fakes: set[int] = set()
        self.finished: list[Record] = []
        self.orphans: set[int] = set()
        """commit_ts of Commits whose Prewrite never came"""
        self.position = 0
        self.old_index = False

    def teardown(self) -> None:
        failpoints.configure("")
        indexer._RETRY_INTERVAL_S = 1.0
        store._FENCE_TIMEOUT_S = 5.0
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.root)

    def tick(self, minutes: int = 0) -> int:
        self.ts += 4 + minutes * _MINUTE
        return self.ts

    # -- writes

    @rule(
        sizes=st.lists(st.integers(0, 300), min_size=1, max_size=4),
        minutes=st.sampled_from([0, 0, 1, 11]),
    )
    def prewrite(self, sizes: list[int], minutes: int) -> None:
        records = [prewrite(self.tick(minutes), b"v" * size) for size in sizes]
        write(self.store, *records)
        self.open += records

    @rule(minutes=st.integers(1, 90))
    def prewrite_with_an_old_start(self, minutes: int) -> None:
        """A clock of TiDB's that is behind, or a transaction that began long ago."""
        start = self.ts - minutes * _MINUTE + 1
        while start in self.used:
            start += 4
        self.used.add(start)
        if start > self.store.gc_ts:  # TiDB lets no transaction live for the days that gc keeps
            record = prewrite(start, b"old")
            write(self.store, record)
            self.open.append(record)

    @rule(pick=st.integers(0, 100))
    def prewrite_again(self, pick: int) -> None:
        if self.open:
            write(self.store, self.open[pick % len(self.open)])

    @rule(
        picks=st.lists(st.integers(0, 100), min_size=1, max_size=5),
        minutes=st.sampled_from([0, 0, 3]),
    )
    def commit(self, picks: list[int], minutes: int) -> None:
        records = []
        for pick in picks:
            if self.open:
                begun = self.open.pop(pick % len(self.open))
                records.append(commit(begun.start_ts, self.tick(minutes)))
                self.done[self.ts] = begun
        if records:
            write(self.store, *records)
        self.finished += records

    @rule(pick=st.integers(0, 100))
    def roll_back(self, pick: int) -> None:
        if self.open:
            write(self.store, rollback(self.open.pop(pick % len(self.open)).start_ts))

    @rule(pick=st.integers(0, 1000))
    def commit_again(self, pick: int) -> None:
        if self.finished:
            write(self.store, self.finished[pick % len(self.finished)])

    @rule()
    def commit_what_never_came(self) -> None:
        start = self.tick() + 2
        self.orphans.add(self.tick())
        write(self.store, commit(start, self.ts))

    @rule()
    def write_fake(self) -> None:
        ts = self.tick()
        write(self.store, fake(ts))
        self.fakes.add(ts)

    @rule()
    def barrier(self) -> None:
        ts = self.tick()
        reached = self.store.barrier(ts, 0.02 if self.open else 10)
        if self.open:
            assert reached < ts
        else:
            assert reached == ts

    # -- what goes wrong

    @rule(
        what=st.sampled_from(
            [
                "index.before_batch=sleep:0.02",
                "index.before_batch=error@1",
                "index.after_batch=error@1",
            ]
        )
    )
    def the_index_stalls_or_fails_at_the_next_writes(self, what: str) -> None:
        failpoints.configure(what)

    @rule()
    def reopen(self) -> None:
        before = self.store.max_commit_ts
        self.store.close()
        failpoints.configure("")
        self.store = Store.open(self.root / str(self.life), self.options)
        recorded = [ts for ts in (*self.done, *self.fakes) if ts <= before]
        assert self.store.max_commit_ts >= max(recorded, default=0)

    @rule()
    def keep_a_copy_of_the_index(self) -> None:
        shutil.rmtree(self.root / "old", ignore_errors=True)
        copy_live(self.root / str(self.life) / "kv", self.root / "old")
        self.old_index = True

    @rule(
        torn=st.binary(max_size=60),
        magic=st.booleans(),
        index=st.sampled_from(["kept", "kept", "lost", "older"]),
        cut=st.integers(0, 200),
    )
    def crash(self, torn: bytes, magic: bool, index: str, cut: int) -> None:
        """The files as they are, and behind them something that was not acknowledged: all of it, or
        a part, or noise.
        """
        old, self.life = self.root / str(self.life), self.life + 1
        new = self.root / str(self.life)
        new.mkdir()
        if index == "older" and self.old_index:
            shutil.copytree(self.root / "old", new / "kv")
        elif index != "lost":
            copy_live(old / "kv", new / "kv")  # first: it must not be ahead of the value log
        shutil.copytree(old / "value", new / "value")
        end = self.store._log.end
        unsure = prewrite(self.tick(), b"unsure")
        verdict = commit(unsure.start_ts, self.tick())
        tail = (encode_record(unsure.payload) + encode_record(verdict.payload))[:cut]
        last = max((new / "value").glob("*.vlog"))
        # full and sealed: what follows begins another
        if last.read_bytes().endswith(END_MAGIC.to_bytes(4, "little")):
            last = last.with_name(f"{int(last.stem) + 1:06d}.vlog")
        with last.open("r+b" if last.exists() else "wb") as file:
            file.seek(end.offset if int(last.stem) == end.fid else 0)  # there may be room
            file.write(tail + (b"\xe8\x56\x3a\x82" if magic else b"") + torn)
        self.store.close()
        failpoints.configure("")
        shutil.rmtree(old)
        self.store = Store.open(new, self.options)
        write(self.store, unsure, verdict)  # as TiDB does: it got no answer
        self.done[verdict.commit_ts] = unsure

    @rule(minutes=st.integers(1, 60))
    def purge(self, minutes: int) -> None:
        before = self.store.gc_ts
        wanted = self.ts - minutes * _MINUTE
        limit = min((r.start_ts for r in self.open), default=wanted)
        try:
            after = self.store.gc(wanted)
        except OSError:  # the index has just failed; it is tried again in an hour
            after = self.store.gc_ts
        assert after in (before, min(wanted, limit))
        if after != before:
            self.old_index = False  # it would point to what is gone

    # -- reads

    def readable(self, lo: int, hi: int, *, fakes: bool) -> list[int]:
        return sorted(ts for ts in (*self.done, *(self.fakes if fakes else ())) if lo < ts <= hi)

    @rule(span=st.tuples(st.integers(0, 40), st.integers(0, 40)), limit=st.integers(1, 5))
    def read_a_part(self, span: tuple[int, int], limit: int) -> None:
        top, gc_ts = self.store.max_commit_ts, self.store.gc_ts
        marks = [gc_ts, *self.readable(gc_ts, top, fakes=False), max(top, gc_ts)]
        lo, hi = sorted((marks[span[0] % len(marks)], marks[span[1] % len(marks)]))
        if lo < hi:
            inside = self.readable(lo, hi, fakes=False)
            assert [row[0] for row in window(self.store, lo, hi)] == inside
            bounds = self.store.bounds(lo, hi, limit, 1 << 40)
            assert bounds.transactions == min(limit, len(inside))
            assert bounds.hi >= (hi if len(inside) <= limit else inside[limit - 1])
            assert self.readable(lo, bounds.hi, fakes=False) == inside[:limit]

    @rule(pick=st.integers(0, 40))
    def nothing_is_said_to_lie_behind_a_commit_where_something_does(self, pick: int) -> None:
        marks = [self.store.gc_ts, *self.done, self.ts]
        lo = marks[pick % len(marks)]
        if self.store.has_nothing_after(lo):
            assert not self.open
            assert not self.readable(lo, self.ts, fakes=False)

    @rule(pick=st.integers(0, 40))
    def a_window_that_is_settled_is_whole(self, pick: int) -> None:
        marks = [self.store.gc_ts, *self.done, self.ts]
        lo = marks[pick % len(marks)]
        try:
            found = (
                self.store.settled_window(lo, self.ts, BASE, 1000, 1 << 20)
                if lo < self.ts
                else None
            )
        except IndexDamagedError:
            return
        if found is not None:
            assert not self.open
            rows = [] if found.rows is None else found.rows["commit_ts"].to_pylist()
            assert rows == self.readable(lo, self.ts, fakes=False)

    @rule()
    def a_reader_goes_on_where_it_was(self) -> None:
        """Across restarts and crashes it gets everything once, in order."""
        self.position = max(self.position, self.store.gc_ts)
        expected = self.readable(self.position, self.store.max_commit_ts, fakes=True)
        if expected:
            assert [row[0] for row in pulled(self.store, expected[-1], self.position)] == expected
            self.position = expected[-1]

    @rule()
    def all_of_it_arrives(self) -> None:
        failpoints.configure("")
        if not self.open:
            top = max((*self.done, *self.fakes, *self.orphans), default=0)
            eventually(lambda: self.store.max_commit_ts >= top)

    @invariant()
    def what_is_readable_has_no_gap(self) -> None:
        if not hasattr(self, "store"):
            return
        top, gc_ts = self.store.max_commit_ts, self.store.gc_ts
        if top > gc_ts:
            rows = [(ts, self.done[ts]) for ts in self.readable(gc_ts, top, fakes=False)]
            expected = [(ts, p.start_ts, p.payload) for ts, p in rows]
            assert window(self.store, gc_ts, top) == expected


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=examples(20),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
