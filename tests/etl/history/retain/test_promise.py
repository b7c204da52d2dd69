"""What is promised as restorable is what a restore accepts, and what reading everything gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from past_model import Reader
from test_retention_property import STEPS, World

from sluice.etl.history.retain import RestorableTables, archive_status, restorable_tables
from sluice.etl.history.retain.policy import ArchiveInventory
from sluice.etl.history.retain.promise import ArchivePromise, ExistenceEvidence, PromisedRange
from sluice.etl.history.retain.table_events import ReadStart, TableEvent
from sluice.etl.restore import FilesRequest, RestoreError, plan_files
from sluice.etl.settings import Settings
from sluice.relay.archive import SnapshotStore

_CREATED = TableEvent(5, 8, "s.b", begins=True)
_DROPPED = TableEvent(9, 8, None)
A3 = ReadStart(3, {7: "s.a"}, "a3")


def ranges(
    snapshots: tuple[ReadStart, ...],
    turns: tuple[TableEvent, ...],
    evidence: ExistenceEvidence = ExistenceEvidence(),
    lo: int = 1,
) -> list[tuple[int, int]]:
    promise = ArchivePromise(ArchiveInventory(lo, 20, snapshots, turns), evidence)
    return [(one.from_ts, one.until_ts) for one in promise.ranges()]


def test_a_table_with_changes_and_without_snapshot_prevents_the_promise_of_all():
    changed = ExistenceEvidence(changed={7: 20}, names={7: "s.a"})
    assert ranges((), (_CREATED,), changed) == []
    promise = ArchivePromise(ArchiveInventory(0, 20, (), (_CREATED,)), changed)
    assert promise.lacking_at(20) == (ReadStart(0), {7: "s.a"})


def test_a_snapshot_behind_what_is_archived_promises_nothing_yet():
    late = ReadStart(25, {7: "s.a"}, "late")
    changed = ExistenceEvidence(changed={7: 20}, held=[(25, frozenset({7}))], names={7: "s.a"})
    assert ranges((late,), (), changed) == []


def test_a_table_that_only_a_later_snapshot_shows_was_there_before_unless_it_was_made_between():
    held = [(25, frozenset({9}))]
    assert ranges((A3,), (), ExistenceEvidence(held=held, names={9: "s.late"})) == []
    made = TableEvent(22, 9, "s.late", begins=True)
    assert ranges((A3,), (), ExistenceEvidence(held=held, later=[made])) == [(3, 20)]


def test_without_a_snapshot_all_is_promised_from_the_first_table_on():
    assert ranges((), (_CREATED,), lo=0) == [(5, 20)]
    assert ranges((), (_CREATED,), ExistenceEvidence(is_whole=False)) == []


def test_a_table_without_snapshot_prevents_only_the_moments_at_which_it_is_there():
    changed = ExistenceEvidence(changed={9: 10}, names={9: "s.lost"})
    gone = TableEvent(9, 9, None)
    assert ranges((A3,), (gone,), changed) == [(9, 20)]
    assert ranges((), (_CREATED, _DROPPED), lo=0) == [(5, 8)]


def test_a_table_of_which_nothing_is_known_when_it_is_recovered_is_lost():
    recovered = TableEvent(9, 6, "s.gone", takes=(6,))
    assert ranges((A3,), (recovered,)) == [(3, 8)]


def test_tables_that_the_settings_leave_out_do_not_count():
    changed = ExistenceEvidence(changed={9: 20}, names={9: "s.left"})
    promise = ArchivePromise(
        ArchiveInventory(1, 20, (A3,), ()), changed, lambda _, table: table != "left"
    )
    assert promise.ranges() == (PromisedRange(3, 20),)


def accepted(settings: Settings, ts: int, folder: Path) -> bool:
    try:
        return not plan_files(settings, FilesRequest(ts, (), folder)).problems
    except RestoreError:
        return False


def whole(world: World) -> dict[int, bool]:
    """Whether everything that is on record can be read from one place, by moment of the archive."""
    reader, past = Reader(world.archive, world.relay), world.past
    on_record = {
        int(table.table["id"])
        for one in SnapshotStore(world.archive.storage).all()
        for table in one.tables
    }
    for _, _, event in reader.events:
        on_record |= (
            set(map(int, event["effect"]["tables"])) if "effect" in event else {event["table_id"]}
        )
    end = world.archive.last()
    moments = sorted(ts for ts, _ in past.history if reader.lo <= ts <= (end.hi if end else 0))
    found = dict.fromkeys(moments, False)
    for start in reader.starts():
        for ts, states in reader.states(start, moments):
            there = {f"s.{name}" for i, name in past.named[ts].items() if i in on_record}
            found[ts] |= bool(states) and there <= states.keys()
    return found


def compare(world: World, folder: Path) -> tuple[int, int]:
    settings = world.settings()
    status = archive_status(settings)
    assert restorable_tables(settings) == RestorableTables(
        status.hi, status.promised_ts, status.unknown
    )
    promised = accepted_count = 0
    expected = whole(world)
    for ts, is_whole in expected.items():
        is_promised = any(one.from_ts <= ts <= one.until_ts for one in status.restorable)
        assert is_promised == accepted(settings, ts, folder), f"{ts}: promised {is_promised}"
        assert is_promised == is_whole, f"{ts}: promised {is_promised}, can be read {is_whole}"
        promised += is_promised
        accepted_count += not is_promised
    if expected and status.hi in expected:
        assert bool(status.whole_from_ts) == expected[status.hi]
        assert bool(status.unknown) == (
            not expected[status.hi] and bool(world.past.named[status.hi])
        )
    return promised, accepted_count


def check(root: Path, seed: int, steps: int) -> tuple[int, int]:
    world = World(root, seed)
    world.past.begin(world.random.randrange(4))
    for step in world.random.choices(list(STEPS), list(STEPS.values()), k=steps):
        if step is World.land or world.relay.first() is not None:
            step(world)
    return compare(world, root / "files")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 4, 39, 44])
def test_every_moment_that_is_promised_and_no_other_is_accepted_by_a_restore(
    tmp_path: Path, seed: int
) -> None:
    check(tmp_path, seed, 40)
