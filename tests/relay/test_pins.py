"""Who reads the archive and who removes from it: one of the two sees the other."""

import pytest

from sluice.relay import RelayCorruptError
from sluice.relay.archive import Pin, Pins, RemovedError
from sluice.relay.storage import open_storage
from tests.object_store.proxy import Fault


@pytest.fixture
def holds(tmp_path):
    return Pins(open_storage(tmp_path.as_uri()))


def test_what_is_held_is_seen_until_it_is_let_go(holds):
    with holds.held("restore-1", Pin("restore-1", 50, ("b1",), "restore-1", 90)):
        assert holds.all() == {"restore-1": Pin("restore-1", 50, ("b1",), "restore-1", 90)}
    assert holds.all() == {}


def test_a_hold_knows_where_the_archive_ended_when_it_was_noted(holds):
    holds.note("one", Pin("one", 50))
    assert holds.all()["one"].archive_ts == 50, "which is as late as an archive that is empty tells"


def test_who_comes_after_the_floor_was_raised_is_told_that_it_is_gone_and_holds_nothing(holds):
    holds.advance_removal(60, ("b1",))
    for hold in (Pin("as-of", 59), Pin("as-of", 60, ("b1", "b2"))):
        with pytest.raises(RemovedError, match="as-of needs it"):
            holds.note("as-of", hold)
    assert holds.all() == {}
    holds.note("as-of", Pin("as-of", 60, ("b2",)))


def test_who_raised_the_floor_sees_who_began_before_though_lists_lag(s3_server, monkeypatch):
    s3_server.inject(Fault("lag", seconds=9))
    monkeypatch.setattr("sluice.relay.archive.pins.sleep", s3_server.proxy.listed.age)
    holds = Pins(open_storage(s3_server.url("archive")))
    holds.note("restore-1", Pin("restore-1", 50, ("b1",)))
    assert holds.all() == {}
    holds.advance_removal(60, ("b1",))
    assert holds.all().keys() == {"restore-1"}


def test_the_floor_never_goes_down_and_forgets_snapshots_that_are_no_more(holds):
    holds.advance_removal(60, ("b1",))
    floor = holds.advance_removal(50, ("b2",), gone=("b1",))
    assert (floor.before_ts, floor.snapshots) == (60, ("b2",))
    assert holds.removal_mark() == floor


def test_a_hold_that_cannot_be_read_is_an_error_that_names_its_file(holds):
    holds.note("one", Pin("one", 1))
    holds._storage.replace("pins/two.json", b"{")
    with pytest.raises(RelayCorruptError, match=r"pins/two\.json"):
        holds.all()


def test_a_name_that_would_lie_elsewhere_is_refused(holds):
    with pytest.raises(Exception, match=r"invalid name .* of a pin"):
        holds.note("../x", Pin("x", 1))
