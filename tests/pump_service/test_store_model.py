"""The store against a list: random writes, restarts, crashes, losses, purges and reads."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from storekit import BASE, OPTIONS, commit, fake, prewrite, pulled, rollback, window, write

from pump_service.store import Record, Store

_OPTIONS = dataclasses.replace(OPTIONS, segment_limit=700, save_interval_s=0.005)


def _copy_live(source: Path, target: Path) -> None:
    """Copies a database in use: again, if LevelDB has replaced files meanwhile."""
    while True:
        before = sorted(source.iterdir())
        with contextlib.suppress(shutil.Error):
            shutil.copytree(source, target)
            if sorted(source.iterdir()) == before:
                return
        shutil.rmtree(target, ignore_errors=True)


class StoreMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.life = 0
        self.store = Store.open(self.root / "0", _OPTIONS)
        self.ts = BASE
        self.open: list[Record] = []
        self.done: dict[int, Record] = {}
        """commit_ts -> Prewrite"""
        self.fakes: set[int] = set()
        self.finished: list[Record] = []

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.root)

    def tick(self, minutes: int = 0) -> int:
        self.ts += 1 + (minutes * 60_000 << 18)
        return self.ts

    @rule(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=4), minutes=st.sampled_from([0, 0, 1, 11]))
    def prewrite(self, sizes: list[int], minutes: int) -> None:
        records = [prewrite(self.tick(minutes), b"v" * size) for size in sizes]
        write(self.store, *records)
        self.open += records

    @precondition(lambda self: self.open)
    @rule(picks=st.lists(st.integers(0, 100), min_size=1, max_size=5), minutes=st.sampled_from([0, 0, 3]))
    def commit(self, picks: list[int], minutes: int) -> None:
        records = []
        for pick in picks:
            if self.open:
                begun = self.open.pop(pick % len(self.open))
                records.append(commit(begun.start_ts, self.tick(minutes)))
                self.done[self.ts] = begun
        write(self.store, *records)
        self.finished += records

    @precondition(lambda self: self.open)
    @rule(pick=st.integers(0, 100))
    def roll_back(self, pick: int) -> None:
        write(self.store, rollback(self.open.pop(pick % len(self.open)).start_ts))

    @precondition(lambda self: self.finished)
    @rule(pick=st.integers(0, 1000))
    def commit_again(self, pick: int) -> None:
        write(self.store, self.finished[pick % len(self.finished)])

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

    @rule()
    def reopen(self) -> None:
        before = self.store.max_commit_ts
        self.store.close()
        self.store = Store.open(self.root / str(self.life), _OPTIONS)
        recorded = [ts for ts in (*self.done, *self.fakes) if ts <= before]
        assert self.store.max_commit_ts >= max(recorded, default=0)

    @rule(torn=st.binary(max_size=60), magic=st.booleans(), lose_index=st.sampled_from([False, False, True]))
    def crash(self, torn: bytes, magic: bool, lose_index: bool) -> None:
        old, self.life = self.root / str(self.life), self.life + 1
        new = self.root / str(self.life)
        new.mkdir()
        if not lose_index:
            _copy_live(old / "kv", new / "kv")  # first: it must not be ahead of the value log
        shutil.copytree(old / "value", new / "value")
        last = max((new / "value").iterdir())
        with last.open("ab") as file:
            file.write((b"\xe8\x56\x3a\x82" if magic else b"") + torn)
        self.store.close()
        shutil.rmtree(old)
        self.store = Store.open(new, _OPTIONS)

    @rule(minutes=st.integers(1, 60))
    def purge(self, minutes: int) -> None:
        before = self.store.gc_ts
        wanted = self.ts - (minutes * 60_000 << 18)
        limit = min((r.start_ts for r in self.open), default=wanted)
        after = self.store.gc(wanted)
        assert after in (before, min(wanted, limit))

    @rule(span=st.tuples(st.integers(0, 40), st.integers(0, 40)), limit=st.integers(1, 5))
    def read_a_part(self, span: tuple[int, int], limit: int) -> None:
        top, gc_ts = self.store.max_commit_ts, self.store.gc_ts
        marks = [gc_ts, *(ts for ts in sorted(self.done) if gc_ts < ts <= top), max(top, gc_ts)]
        lo, hi = sorted((marks[span[0] % len(marks)], marks[span[1] % len(marks)]))
        if lo < hi:
            inside = [ts for ts in sorted(self.done) if lo < ts <= hi]
            assert [row[0] for row in window(self.store, lo, hi)] == inside
            bounds = self.store.bounds(lo, hi, limit, 1 << 40)
            assert bounds.transactions == min(limit, len(inside))
            assert bounds.hi == (hi if len(inside) <= limit else inside[limit - 1])

    @rule()
    def pull(self) -> None:
        top, gc_ts = self.store.max_commit_ts, self.store.gc_ts
        expected = sorted(ts for ts in (*self.done, *self.fakes) if gc_ts < ts <= top)
        if expected:
            assert [row[0] for row in pulled(self.store, expected[-1], gc_ts)] == expected

    @invariant()
    def what_is_readable_has_no_gap(self) -> None:
        if not hasattr(self, "store"):
            return
        top, gc_ts = self.store.max_commit_ts, self.store.gc_ts
        if top > gc_ts:
            expected = [(ts, p.start_ts, p.payload) for ts, p in sorted(self.done.items()) if gc_ts < ts <= top]
            assert window(self.store, gc_ts, top) == expected


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
