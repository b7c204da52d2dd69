"""Write every version of a table's rows as a row of its own: `history` of `[[filter.columns]]`.

A commit ends the version of each key that it removes, and begins one for each key that it leaves
with other values. So what a change set makes of a key is

    the version that is open downstream ends at the key's first change
    a row for each version that begins in the change set, which ends where the next change is

Nothing is folded: versions between two commits of one change set are rows, too. What a transaction
did to a row in between is no version, since no other transaction saw it.

In safe mode changes may be downstream already. Then versions since the key's first change go, and
what was open before it is closed there again, so changes may be written twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice.etl.changes.formats.closed_versions import closing_statements, later_versions_deletes
from sluice.etl.changes.formats.load_data import format_load
from sluice.etl.changes.formats.sql_columns import display_text, key_conditions
from sluice.etl.changes.rules import commit_time, history_columns, with_history_columns
from sluice.etl.changes.steps import ChangeError, DeleteDetail, LoadDetail, Step
from sluice.etl.changes.write_plans.change_set import ChangeSet, StageTimings
from sluice.etl.changes.write_plans.identity import identity, lookup_key_columns
from sluice.etl.changes.write_plans.net_effect import key_codes, net_effect, unchanged_rows
from sluice.etl.changes.write_plans.raw_changes import DECODE_BATCH_ROWS, RawChanges, images_of
from sluice.etl.changes.write_plans.reduced_table import comparable_keys
from sluice.etl.changes.write_plans.table_changes import bytes_steps
from sluice.relay import DELETE, INSERT
from sluice.tidb.rows import DecodeStats
from sluice.tidb.schema import Table


@dataclass(frozen=True, slots=True)
class _Events:
    """What commits did to keys: ends (of an old image) and begins (a new one) of versions.

    Ordered by key, then by commit; of one commit the end comes first.
    """

    begins: np.ndarray
    """Whether it is a begin (bool)."""
    images: np.ndarray
    """Places of the images: of new ones for begins, of old ones else."""
    commit_ts: np.ndarray
    is_first: np.ndarray
    """Whether it is the key's first (bool)."""


class HistoryVersions:
    """The steps that bring the versions of a table's rows downstream."""

    def __init__(
        self, table: Table, changes: RawChanges, timings: StageTimings, *, safe: bool, lenient: bool
    ) -> None:
        """Take changes in their order.

        `table`: as column rules shape it. `lenient`: rows may be missing downstream, or be there
        already; `safe`: so may the changes' own versions. Raises ChangeError and the row codec's
        errors.
        """
        self.table = table
        self.first_ts, self.last_ts = int(changes.commit_ts[0]), int(changes.commit_ts[-1])
        self._safe, self._lenient = safe, safe or lenient
        self._timings = timings
        self._key = lookup_key_columns(table)
        started = time.perf_counter()
        self._old, self._new = images_of(table, changes, DecodeStats())
        decoded = time.perf_counter()
        self._events = self._ordered(*self._outcomes(changes.kinds, changes.commit_ts))
        if not self._lenient:
            self._check_order()
        timings.decode += decoded - started
        timings.reduce += time.perf_counter() - decoded

    def as_bytes(self, after_ts: int) -> Iterator[Step]:
        """Yield a bytes step if there is text to be written that isn't utf-8."""
        if self._new.count:
            yield from bytes_steps(self.table, self._new, after_ts, self.last_ts)

    def deletes(self) -> Iterator[Step]:
        """Yield what ends versions, before any load; in safe mode what removes some before."""
        started = time.perf_counter()
        steps = list(self._closing_steps())
        self._timings.format += time.perf_counter() - started
        yield from steps

    def loads(self) -> Iterator[Step]:
        """Yield load steps: a row for each version that begins."""
        events = self._events
        places = np.flatnonzero(events.begins)
        follows = np.append(~events.is_first[1:], False)[places]
        nexts = np.append(events.commit_ts[1:], 0)[places]
        written = with_history_columns(self.table)
        keys = (*(column.name for column in self._key), self.table.history[2])
        for first in range(0, len(places), DECODE_BATCH_ROWS):
            started = time.perf_counter()
            some = slice(first, first + DECODE_BATCH_ROWS)
            images = self._new.take(events.images[places[some]])
            stamps = events.commit_ts[places[some]]
            columns = {c.name: images[c.name] for c in self.table.stored_columns}
            columns |= version_values(self.table, stamps, nexts[some], follows[some])
            for chunk in format_load(written, columns, len(stamps)):
                self._timings.format += time.perf_counter() - started
                detail = LoadDetail(
                    self.first_ts,
                    self._safe,
                    layout=chunk.layout,
                    keys=keys,
                    warnings=chunk.warnings,
                    keeps_deleted=True,
                )
                yield self._step(detail, chunk.rows, chunk.payload)
                started = time.perf_counter()

    # --- what happened to keys

    def _outcomes(
        self, kinds: np.ndarray, commit_ts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return what transactions did to rows: (old images that go, their commits, new, theirs).

        A row that came and went in one transaction isn't among them.
        """
        names = identity(self.table)
        columns = {column.name: column for column in self.table.stored_columns}
        codes = key_codes(
            *(
                [comparable_keys(images[n], columns.get(n)) for n in names]
                for images in (self._old, self._new)
            )
        )
        stamps = commit_ts[kinds != INSERT], commit_ts[kinds != DELETE]
        effect = net_effect(kinds, *_paired(stamps, codes), partial=True)
        old = np.concatenate((effect.deleted, effect.updated_old))
        new = np.concatenate((effect.inserted, effect.updated_new))
        return old, stamps[0][old], new, stamps[1][new]

    def _ordered(
        self, old: np.ndarray, old_ts: np.ndarray, new: np.ndarray, new_ts: np.ndarray
    ) -> _Events:
        codes = np.concatenate(
            key_codes(
                [comparable_keys(self._old.some(c.name, old), c) for c in self._key],
                [comparable_keys(self._new.some(c.name, new), c) for c in self._key],
            )
        )
        begins = np.append(np.zeros(len(old), bool), np.ones(len(new), bool))
        images, stamps = np.concatenate((old, new)), np.concatenate((old_ts, new_ts))
        order = np.lexsort((begins, stamps, codes))
        begins, images, stamps, codes = (each[order] for each in (begins, images, stamps, codes))
        kept = ~self._without_effect(begins, images, stamps, codes)
        codes = codes[kept]
        is_first = np.ones(len(codes), bool)
        is_first[1:] = codes[1:] != codes[:-1]
        return _Events(begins[kept], images[kept], stamps[kept], is_first)

    def _without_effect(
        self, begins: np.ndarray, images: np.ndarray, stamps: np.ndarray, codes: np.ndarray
    ) -> np.ndarray:
        """Return which events leave a key as it was (bool): a commit's end and begin of equals."""
        names = [column.name for column in self.table.stored_columns]
        ends = np.flatnonzero(
            ~begins[:-1] & begins[1:] & (stamps[:-1] == stamps[1:]) & (codes[:-1] == codes[1:])
        )
        old, new = ([images_[name] for name in names] for images_ in (self._old, self._new))
        same = ends[unchanged_rows(old, new, images[ends], images[ends + 1])]
        found = np.zeros(len(begins), bool)
        found[same] = found[same + 1] = True
        return found

    def _check_order(self) -> None:
        """Check that versions of a key end and begin by turns. Raises ChangeError."""
        events = self._events
        broken = np.flatnonzero(~events.is_first[1:] & (events.begins[1:] == events.begins[:-1]))
        if not len(broken):
            return
        at = int(broken[0]) + 1
        images, kept = (
            (self._new, "inserted though it exists")
            if events.begins[at]
            else (self._old, "updated or deleted though it doesn't exist")
        )
        place = int(events.images[at])
        key = ", ".join(
            f"{column.name}={display_text(images[column.name], place)!r}" for column in self._key
        )
        raise ChangeError(
            f"table {self.table.full_name}, row {key}: {kept} at commit_ts"
            f" {int(events.commit_ts[at])}; the changes between {self.first_ts} and {self.last_ts}"
            " contradict each other, so the relay log does not hold what the upstream did",
            hint=(
                "land the window again into an empty relay log, or leave the transaction out:"
                " `sluice txn skip`"
            ),
        )

    # --- steps

    def _closing_steps(self) -> Iterator[Step]:
        events = self._events
        firsts = np.flatnonzero(events.is_first)
        firsts = firsts[np.argsort(events.commit_ts[firsts], kind="stable")]
        if not len(firsts):
            return
        keys = self._key_conditions(firsts)
        stamps = events.commit_ts[firsts].tolist()
        if self._safe:
            for rows, statement in later_versions_deletes(self.table, keys, stamps):
                yield self._delete_step(rows, statement)
        # A key that only begins has nothing to end: that is checked by its not being counted.
        ends = ~events.begins[firsts]
        times = [commit_time(ts) for ts in stamps]
        for places, statement in closing_statements(self.table, keys, times, reopened=self._safe):
            yield self._delete_step(int(ends[places.start : places.stop].sum()), statement)

    def _key_conditions(self, places: np.ndarray) -> list[bytes]:
        """Return conditions that find the keys of events."""
        events = self._events
        begins, images = events.begins[places], events.images[places]
        arrays = [
            _chosen(self._old[column.name], self._new[column.name], begins, images)
            for column in self._key
        ]
        found: list[bytes] = key_conditions(self._key, arrays).to_pylist()
        return found

    def _delete_step(self, rows: int, statement: bytes) -> Step:
        detail = DeleteDetail(self.first_ts, self._lenient, keeps_deleted=True)
        return self._step(detail, rows, statement)

    def _step(self, detail: DeleteDetail | LoadDetail, rows: int, payload: object) -> Step:
        return Step(detail, self.last_ts, self.table.schema_name, self.table.name, rows, 0, payload)


def history_versions_of(
    segment: ChangeSet, table: Table, places: np.ndarray, timings: StageTimings
) -> HistoryVersions:
    """Return the versions that changes at some places of a segment make, all of one table."""
    changes = RawChanges(
        segment.column("kind", places),
        segment.column("commit_ts", places),
        segment.all_rows,
        places,
    )
    lenient = table.id in segment.partial
    return HistoryVersions(table, changes, timings, safe=segment.safe, lenient=lenient)


def version_values(
    table: Table, commit_ts: np.ndarray, nexts: np.ndarray, is_closed: np.ndarray
) -> dict[str, pa.Array]:
    """Return the values of a history table's own columns, by name.

    `commit_ts`: commits that made the versions; `nexts`: those that ended them, where `is_closed`.
    """
    since, until, made_by = history_columns(table)
    return {
        since.name: _times(commit_ts, np.ones(len(commit_ts), bool)),
        until.name: _times(nexts, is_closed),
        made_by.name: pa.array(commit_ts, pa.int64()),
    }


def _times(stamps: np.ndarray, is_known: np.ndarray) -> pa.Array:
    different, places = np.unique(stamps, return_inverse=True)
    texts = pa.array([commit_time(ts) for ts in different.tolist()], pa.large_string())
    return texts.take(pa.array(places, pa.int64(), mask=~is_known))


def _paired(
    stamps: tuple[np.ndarray, np.ndarray], codes: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return codes that are equal where both the commit and the code are."""
    split = len(stamps[0])
    _, first = np.unique(np.concatenate(stamps), return_inverse=True)
    known, second = np.unique(np.concatenate(codes), return_inverse=True)
    both = first.astype(np.int64) * max(1, len(known)) + second
    return both[:split], both[split:]


def _chosen(old: pa.Array, new: pa.Array, is_new: np.ndarray, places: np.ndarray) -> pa.Array:
    """Return values at places, each of one of two arrays."""
    both = pa.concat_arrays([old, new.cast(old.type)])
    return both.take(pa.array(places + is_new * len(old)))
