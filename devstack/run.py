"""Run the whole on one machine: replay a recording, copy in the middle of it, compare.

Starts everything, replays a recording, copies what is there in the middle of it, replicates the
rest, compares at every snapshot, and stops everything.
"""

from __future__ import annotations

import contextlib
import functools
import time
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from sluice.devstack import accident_demo as accident
from sluice.devstack import bootstrap_demo as copies
from sluice.devstack import replay, verification
from sluice.devstack.compare import compare
from sluice.devstack.control import AirflowClient, ClusterControl
from sluice.devstack.damage import Damage, damage
from sluice.devstack.fresh_stack import fresh_stack, relay_of, wait_landing, wait_pipeline
from sluice.devstack.launch import connect
from sluice.devstack.progress_view import (
    CheckpointTrace,
    Observer,
    ProgressView,
    ReplicationProgress,
)
from sluice.devstack.recording import Recording, SnapshotLabel
from sluice.devstack.run_summary import RunSummary, Span
from sluice.devstack.stack import Stack
from sluice.devstack.state import StackError
from sluice.relay import Control

_MAX_RESTARTS = 20
_ACCIDENT_TIMEOUT_S = 120.0


def run(
    stack: Stack, directory: Path, viewer: Observer, *, speed: str = "1", bootstrap: bool = True
) -> RunSummary:
    """Replay the recording in `directory` through its last snapshot.

    The downstream is compared at each of its snapshots.

    With `bootstrap` the empty downstream becomes a replica by a copy when a quarter of the
    transactions are committed; what comes later is replicated, and compared at the snapshots after
    the copy. On the way to the last one a table is damaged while applying is held, and copied
    again. Without it all is replicated.

    Applying is held at each snapshot's timestamp until the comparison is done; receiving and
    landing go on. `speed`: 1 as recorded, "max" without waiting. Parts that die while replication
    runs are started again. Raises StackError, RecordingError, and what a bootstrap raises; the
    stack is down when this returns or raises.
    """
    recording = Recording(directory)
    if not recording.labels:
        raise StackError(f"{directory} has no snapshots to compare with")
    began = time.monotonic()
    # Landing begins at the copy's timestamp, so it waits for that.
    orders = (
        Control(land_paused=True)
        if bootstrap
        else Control(apply_until_ts=_hold_at(recording.labels))
    )
    with fresh_stack(stack, directory, viewer.report, orders):
        play = _Run(stack, recording, viewer, RunSummary(recording=recording.name, speed=speed))
        play.wait_ready(began, bootstrap=bootstrap)
        play.play(bootstrap=bootstrap)
    play.summary.total_s = time.monotonic() - began
    return play.summary


class _Run:
    """One run on a stack that is up."""

    def __init__(
        self, stack: Stack, recording: Recording, viewer: Observer, summary: RunSummary
    ) -> None:
        self._stack = stack
        self._recording = recording
        self._viewer = viewer
        self.summary = summary
        self._site = stack.site()
        self._relay = relay_of(stack)
        self._control = ClusterControl(self._site.ports["cluster-control"])
        self._commits = sorted(
            each.commit_ts
            for each in recording.transactions(recording.labels[-1].ts).values()
            if each.commit_ts
        )

    def wait_ready(self, began: float, *, bootstrap: bool) -> None:
        """Wait until the pipeline's tasks run, and landing has begun unless it waits for a copy."""
        if bootstrap:
            copies.read_ahead(self._site)
        wait_pipeline(self._stack, AirflowClient(self._stack.home, self._site.ports["airflow"]))
        if not bootstrap:
            wait_landing(self._relay)
        self.summary.start_s = time.monotonic() - began
        waits = ", and waits for the copy" if bootstrap else ""
        self._viewer.report(
            f"the DAG replicate runs{waits}, {self.summary.start_s:.0f} s after the start"
        )

    def play(self, *, bootstrap: bool) -> None:
        """Replay, copy, replicate and compare."""
        speed, labels = self.summary.speed, self._recording.labels
        pace = (
            "as fast as the pumps take it"
            if speed == "max"
            else f"at {speed} times the recorded speed"
        )
        self._viewer.report(
            f"TiDB's traffic begins: {len(self._commits):,} transactions of"
            f" {self._recording.directory}, {pace}"
        )
        view = ProgressView(self._site)
        trace = CheckpointTrace(self._site)
        trace.start()
        try:
            replay.send(self._stack, labels[-1].name, speed, "range")
            if bootstrap:
                self._copy()
            labels = [label for label in labels if label.ts >= self.summary.copied_ts] or labels[
                -1:
            ]
            self._release(labels, self.summary.copied_ts)
            progress, holds = self._replicate(view, labels)
            self.summary.count(progress, trace.moves())
            self.summary.measure(trace, self._control.all_commits(), holds)
            if self.summary.copied:
                self._verify(labels[-1])
                self._check_quality()
                self._delete_by_accident(labels[-1])
        finally:
            trace.stop()
            view.close()

    def _copy(self) -> None:
        committed = copies.wait_committed(self._site, len(self._commits) // 4)
        to_come = "no more are to come" if replay.is_sent(self._control) else "more are to come"
        self._viewer.report(
            f"{committed:,} transactions are committed in TiDB and {to_come}; MariaDB is empty."
            " What `sluice bootstrap --from tidb://` does makes it a replica"
        )
        done = copies.copy_now(self._site, self._viewer)
        summary = self.summary
        summary.copied = bisect_right(self._commits, done.ts)
        summary.copied_ts, summary.copied_tables, summary.copied_rows = (
            done.ts,
            done.tables,
            done.rows_there,
        )
        summary.copied_s = done.seconds
        self._viewer.report(
            f"copied {done.tables} tables with {done.rows_there:,} rows in {done.seconds:.1f} s, as"
            f" of commit_ts {done.ts}: what the first {summary.copied:,} transactions left."
            " Replication goes on from there"
        )

    def _release(self, labels: Sequence[SnapshotLabel], reached: int) -> None:
        """Let landing go on, and applying through the first of these.

        On the way from `reached` (TSO) to the last one `_damage` decides how far.
        """
        stays = reached if labels and self.summary.copied else None
        self._hold_applying_at(labels[0].ts if len(labels) > 1 else stays)

    def _hold_applying_at(self, ts: int | None) -> None:
        """Let landing go on, and applying through `ts` (TSO; None: with no end)."""
        self._relay.change_control(lambda _: Control(apply_until_ts=ts))

    def _replicate(
        self, view: ProgressView, labels: Sequence[SnapshotLabel]
    ) -> tuple[ReplicationProgress, list[Span]]:
        """Compare at each of `labels`; when applying was held for that."""
        holds: list[Span] = []
        for at, label in enumerate(labels):
            if label is labels[-1] and self.summary.copied:
                self._damage_and_repair(
                    view, (labels[at - 1].ts if at else self.summary.copied_ts, label), holds
                )
            progress = self._wait_applied(
                view, label, replay.ReplayGoal(label.ts, sent=label is labels[-1])
            )
            held = time.time() * 1000
            self._compare(label)
            self._release(labels[at + 1 :], label.ts)
            holds.append((held, time.time() * 1000))
            if not at and self.summary.copied:
                self._make_snapshot()
        return progress, holds

    def _make_snapshot(self) -> None:
        snapshot = accident.make_snapshot(self._site, self._viewer)
        self._viewer.report(
            f"a snapshot for later: {snapshot.tables} tables with {snapshot.rows:,} rows"
            f" as of commit_ts {snapshot.ts}, read from MariaDB at its checkpoint"
            f" in {snapshot.seconds:.1f} s. What is committed after it is archived as it comes"
        )

    def _verify(self, label: SnapshotLabel) -> None:
        """Compare both sides; change a value in the replica, find it, and repair it."""
        found = verification.verify(self._site, self._viewer)
        self.summary.prove(found)
        self._viewer.report(f"`sluice verify`: {self.summary.verified}")
        wrong = verification.corrupt_and_find(self._site, label.tables)
        if wrong is None:
            self._viewer.report("no table has a value that can be changed by the way")
            return
        found = verification.verify(self._site, self._viewer, wrong.table)
        examples = [one for table in found.unequal for one in table.examples]
        named = [f"{name}={value}" for one in examples for name, value in one.key.items()]
        self._viewer.report(
            f"a user changes {wrong.column} of the row {wrong.key} of {wrong.table} in MariaDB."
            f" `sluice verify {wrong.table}` names {', '.join(named) or 'nothing'}:"
            f" {examples[0].binlog if examples else ''}"
        )
        if not found.equal:
            verification.repair(self._site, self._viewer, found)
        again = verification.verify(self._site, self._viewer, wrong.table)
        self.summary.spoiled = (
            f"{found.differences} row of {wrong.table} ({', '.join(named)}), found in"
            f" {found.seconds:.1f} s, repaired, and {again.rows:,} rows equal again"
        )
        if named != [wrong.key] or not again.equal:
            self.summary.differences.append(
                f"{wrong.key} of {wrong.table} was changed; found: {named}, equal after the repair:"
                f" {again.equal}"
            )

    def _check_quality(self) -> None:
        """Check the replica with Great Expectations, and report where its figures are."""
        look = self._viewer.quality
        if look is None:
            return
        found = copies.with_retries(self._viewer, lambda: look(self._site.config))
        self.summary.quality = found.text
        self.summary.differences += [f"quality: {failure}" for failure in found.failures]
        self._viewer.report(
            "`sluice quality init` proposes what the data should be, `sluice quality run`:"
            f" {found.text}"
        )

    def _delete_by_accident(self, label: SnapshotLabel) -> None:
        """Empty a table by mistake, find the moment, and restore the table.

        It is restored to right before the moment.
        """
        happened = accident.delete_without_where(self._site, label.tables)
        if happened is None:
            self._viewer.report("no table has rows that an accident could take")
            return
        self._viewer.report(
            f"an operator forgets the WHERE in TiDB: DELETE FROM {happened.table} takes"
            f" {happened.rows:,} rows, and replication does the same to MariaDB"
        )
        accident.wait_empty(self._site, happened.table, _ACCIDENT_TIMEOUT_S)
        began = time.monotonic()
        found = accident.find_accident(self._site, happened, label.ts)
        took_s = time.monotonic() - began
        if not found.transactions:
            raise StackError(
                f"the DELETE of {happened.table} at {happened.commit_ts} wasn't found in the past"
            )
        first = found.transactions[0]
        self._viewer.report(
            f"`sluice find --table {happened.table} --kind delete --sort size` lists it first,"
            f" after {took_s:.1f} s: commit_ts {first.commit_ts}, {first.rows:,} rows. `sluice"
            f" restore --until before:{first.commit_ts}` …"
        )
        done = accident.restore(self._site, self._viewer, happened.table, first.commit_ts)
        there, left = (
            accident.count(self._site, name) for name in (happened.restored, happened.table)
        )
        self.summary.recover(happened, first.commit_ts, done.seconds, (there, left))
        self._viewer.report(
            f"{happened.restored} has {there:,} rows, as right before it; {happened.table} has"
            f" {left:,}: {done.snapshot_rows:,} rows of the snapshot and {done.changes:,} changes"
            f" in {done.seconds:.1f} s"
        )

    def _wait_applied(
        self, view: ProgressView, label: SnapshotLabel, goal: replay.ReplayGoal
    ) -> ReplicationProgress:
        show = functools.partial(self._viewer.show, label, self.summary.copied)
        onlooker = replay.ReplayObserver(show, self._viewer.report, self._tend, interval_s=0.1)
        return replay.wait_applied(self._stack, view, goal, onlooker)

    def _damage_and_repair(
        self, view: ProgressView, way: tuple[int, SnapshotLabel], holds: list[Span]
    ) -> None:
        """Write to the replica, and have a backfill make it whole while replication goes on.

        `way`: from where (TSO) applying is held, to the last snapshot.
        """
        done = self._damage(view, way, holds)
        if done is None:
            self._viewer.report(
                "no table has a key of one number and enough rows to damage some: no backfill has"
                " anything to repair"
            )
            return
        goes_on = "traffic" if not replay.is_sent(self._control) else "replication"
        self._viewer.report(
            f"an operator removes {done.removed} rows of {done.table} from MariaDB, changes"
            f" {done.changed} and adds {done.added}. While {goes_on} goes on, what `sluice backfill"
            f" --table {done.table}` does copies it again"
        )
        found = copies.copy_again(self._site, self._viewer, done.table)
        self.summary.copied_again = (
            f"{done.table}, while {goes_on} went on: {found.total('rows'):,} rows in"
            f" {found.total('chunks'):,} chunks in {found.seconds:.1f} s;"
            f" {found.total('inserted'):,} were missing, {found.total('replaced'):,} different,"
            f" {found.total('deleted'):,} not in TiDB"
        )
        self._viewer.report(f"copied again {self.summary.copied_again}")

    def _damage(
        self, view: ProgressView, way: tuple[int, SnapshotLabel], holds: list[Span]
    ) -> Damage | None:
        """Damage a table as soon as one has enough rows that stay as they are.

        At the latest when all is applied. What is there to be damaged depends on where applying
        is, so it is held for each look.
        """
        begin, last = way
        snapshot = self._recording.directory / "snapshots" / last.name
        done: Damage | None = None
        for ts in damage_points(self._commits, begin, last.ts):
            self._hold_applying_at(ts)
            self._wait_applied(view, last, replay.ReplayGoal(ts, sent=False))
            held = time.time() * 1000
            with contextlib.closing(connect(self._site)) as database:
                done = damage(database, snapshot, last.tables)
            holds.append((held, time.time() * 1000))
            if done is not None:
                break
        self._hold_applying_at(None)
        return done

    def _compare(self, label: SnapshotLabel) -> None:
        summary = self.summary
        with contextlib.closing(connect(self._site)) as database:
            found = compare(self._recording.directory / "snapshots" / label.name, database)
        summary.snapshots.append(label.name)
        summary.tables += found.tables
        summary.rows_compared += found.rows
        summary.differences += [f"{label.name}: {line}" for line in found.differences]
        self._viewer.report(
            f"snapshot {label.name}: {found.tables} tables, {found.rows:,} rows compared,"
            f" {len(found.differences)} differences"
        )

    def _tend(self) -> None:
        """Start again what died."""
        for name in self._stack.dead():
            self.summary.restarted.append(name)
            if len(self.summary.restarted) > _MAX_RESTARTS:
                raise StackError(
                    f"parts keep dying, {name} the last: see {self._stack.home / 'logs'}"
                )
            self._viewer.report(f"{name} died; starting it again")
            self._stack.up([name])


def _hold_at(labels: Sequence[SnapshotLabel]) -> int | None:
    """Return where applying waits (TSO); the last snapshot needs no hold, since no more is sent."""
    return labels[0].ts if len(labels) > 1 else None


def damage_points(commits: Sequence[int], begin: int, end: int) -> list[int]:
    """Return where to look for rows to damage between a checkpoint and the last snapshot (TSO).

    That is after each eighth of the `commits` (ascending) between them, and at the end.
    """
    between = commits[bisect_right(commits, begin) : bisect_right(commits, end)]
    return sorted(
        {*(between[len(between) * n // 8] for n in range(1, 8) if between), max(begin, end)}
    )
