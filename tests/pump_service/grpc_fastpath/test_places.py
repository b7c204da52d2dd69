"""What connections may take together: who is ended for whom, and that no more is taken than all
may.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.pump_service.grpc_fastpath import ConnectionSlots
from sluice.pump_service.grpc_fastpath.places import client_group


def _filled(places, host, count, *, wrote=False):
    found = [places.acquire(host, 10) for _ in range(count)]
    for place in found:
        if wrote:
            place.mark_writer()
        place.used -= 100  # it has been idle since
    return found


def test_the_one_that_completed_no_call_for_longest_makes_room():
    places = ConnectionSlots(1000, 40)
    first, second, third = (_filled(places, f"10.0.0.{n}", 1)[0] for n in range(3))
    first.complete()
    assert places.acquire("10.0.0.9", 20) is not None
    assert [place.is_open for place in (first, second, third)] == [True, False, True]
    assert (places.used, places.size) == (3, 40)


def test_an_address_that_has_written_is_never_ended_for_one_that_has_not():
    places = ConnectionSlots(1000, 40)
    writers = _filled(places, "10.0.0.1", 2, wrote=True)
    strangers = _filled(places, "10.0.0.2", 2)
    assert all(places.acquire(f"10.0.1.{n}", 10) for n in range(20))
    assert all(place.is_open for place in writers) and not any(place.is_open for place in strangers)
    assert places.acquire("10.0.0.3", 30) is None
    assert places.size == 20, "the crowd was ended for it, in vain"


def test_an_address_that_has_written_gets_the_room_of_strangers_and_of_idle_ones_that_wrote():
    places = ConnectionSlots(1000, 40)
    idle = _filled(places, "10.0.0.1", 2, wrote=True)
    _filled(places, "10.0.0.2", 2)
    assert all(places.acquire("10.0.0.1", 10) for _ in range(3))
    assert [place.is_open for place in idle] == [False, True]


def test_what_waits_for_the_pump_is_not_ended():
    places = ConnectionSlots(1000, 20)
    waiting, idle = _filled(places, "10.0.0.1", 2)
    waiting.is_busy = lambda: True
    assert places.acquire("10.0.0.2", 10) is not None
    assert waiting.is_open and not idle.is_open
    assert waiting.resize(30) is False


def test_what_grows_ends_others_and_is_told_when_that_is_not_enough():
    places = ConnectionSlots(1000, 100)
    one, two, three = _filled(places, "10.0.0.1", 3)
    assert three.resize(85)
    assert not one.is_open and two.is_open
    assert not three.resize(101)
    assert three.is_open and not two.is_open
    assert three.resize(50) and places.size == 50


def test_one_address_and_one_ipv6_network_take_half_of_the_connections():
    places = ConnectionSlots(8, 1 << 20)
    crowd = [places.acquire(f"2001:db8::{n:x}", 10) for n in range(8)]
    assert [place.is_open for place in crowd] == [False] * 4 + [True] * 4
    assert places.acquire("2001:db8:0:1::1", 10).is_open and places.used == 5


def test_addresses_are_grouped_as_one_holder_has_them():
    assert client_group("10.1.2.3") == client_group("::ffff:10.1.2.3") == "10.1.2.3"
    assert client_group("fe80::1%eth0") == client_group("fe80::2%eth0") == "fe80::/64"
    assert client_group("unix socket") == "unix socket"


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "hold", "close", "wrote", "complete", "busy", "free"]),
        st.integers(0, 30),
        st.integers(0, 60),
    ),
    max_size=80,
)


@given(_STEPS)
def test_no_more_is_ever_taken_than_all_may_and_nothing_is_left_behind(steps):
    places = ConnectionSlots(10, 200)
    made, ended = [], []
    for step, which, size in steps:
        if step == "enter":
            place = places.acquire(f"10.0.0.{which % 5}", size)
            if place is not None:
                made.append(place)
                place.end = lambda: ended.append(1)
            continue
        if not made:
            continue
        place = made[which % len(made)]
        if step == "hold" and not place.resize(size):
            place.close()  # as its connection does
        elif step == "close":
            place.close()
        elif step == "wrote" and place.is_open:
            place.mark_writer()
        elif step == "complete":
            place.complete()
        elif step in ("busy", "free"):
            place.is_busy = lambda busy=step == "busy": busy
        here = [place for place in made if place.is_open]
        assert places.used == len(here) <= 10
        assert places.size == sum(place.size for place in here) <= 200
    for place in made:
        place.close()
    assert (places.used, places.size, dict(places._by_group)) == (0, 0, {})
    assert not places._strangers and not places._settled
