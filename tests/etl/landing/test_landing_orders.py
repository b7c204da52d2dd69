"""What landing looks up of what others want."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from sluice.etl.landing import _control as _orders
from sluice.etl.landing._control import LandingControl
from sluice.relay import SKIP, AlignedChunk, ClaimLostError, Override, RelayLog
from sluice.relay import role_lease as turn
from sluice.tidb import tso


def look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the relay log is."""
    for name in ("CHECK_INTERVAL_S", "_REMOTE_CHECK_INTERVAL_S"):
        monkeypatch.setattr(_orders, name, 0.0)


def test_an_idle_upstream_lands_a_window_for_an_appointment_once_its_time_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_always(monkeypatch)
    relay, now = RelayLog.open(f"file://{tmp_path}"), tso.compose(1_795_251_600_000)
    orders = LandingControl(relay, frozenset())
    landed = now - tso.span(10_000)
    assert not orders.needs_window_now(landed, now)
    relay.aligned_chunks.make(AlignedChunk(now + tso.span(3_600_000), "j", 0, 1, "d", "t"))
    assert not orders.needs_window_now(landed, now)
    relay.aligned_chunks.make(AlignedChunk(now - tso.span(1_000), "j", 1, 1, "d", "t"))
    assert orders.needs_window_now(landed, now)
    assert not orders.needs_window_now(now - tso.span(500), now)


def test_a_transaction_is_left_out_of_the_relay_log_only_if_no_pipeline_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_always(monkeypatch)
    one, other = (RelayLog.open(f"file://{tmp_path}", name) for name in ("", "other"))
    for relay, ts in ((one, 10), (one, 20), (other, 20), (other, 30)):
        relay.overrides.add(Override(ts, SKIP))
    assert LandingControl(one, frozenset({30, 40})).skips(0) == {
        20,
        30,
    }, "each wants what it hasn't decided to skip"
    other.aligned_chunks.make(AlignedChunk(50, "j", 0, 1, "d", "t"))
    assert LandingControl(one, frozenset()).needs_window_now(40, 60)


def test_who_reads_alone_has_its_own_way(tmp_path: Path) -> None:
    relay = RelayLog.open(f"file://{tmp_path}", "only")
    relay.overrides.add(Override(10, SKIP))
    assert LandingControl(relay, frozenset({40})).skips(0) == {10, 40}
    assert not LandingControl(relay, frozenset()).is_shared


def test_a_pipeline_takes_over_what_another_has_not_got_on_with_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(turn, "time", SimpleNamespace(monotonic=lambda: now[0]))
    at = [1]
    one, other = (RelayLog.open(f"file://{tmp_path}", name) for name in ("", "other"))
    ours, theirs = (
        turn.RoleStandby(relay, "land", lambda: at[0], logging.getLogger("test"))
        for relay in (one, other)
    )
    assert ours.should_claim() and theirs.should_claim(), "nobody has the role"
    claim = one.claim("land")
    for _ in range(3):
        assert ours.should_claim() and not theirs.should_claim()
        now[0] += turn.TAKEOVER_TIMEOUT_S - 1
        at[0] += 1
    assert not theirs.should_claim(), "it gets on"
    now[0] += turn.TAKEOVER_TIMEOUT_S
    assert theirs.should_claim()
    taken = other.claim("land")
    assert not ours.should_claim()
    with pytest.raises(ClaimLostError):
        claim.release()
    taken.release()
    assert ours.should_claim() and theirs.should_claim()
