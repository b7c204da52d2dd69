"""What landing looks up of what others want."""

from __future__ import annotations

from pathlib import Path

import pytest

from etl.landing import _orders
from etl.landing._orders import Orders
from relay import Appointment, RelayLog
from upstream import tso


def test_an_idle_upstream_lands_a_window_for_an_appointment_once_its_time_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_orders, "LOOK_EVERY_S", 0.0)
    relay, now = RelayLog.open(f"file://{tmp_path}"), tso.compose(1_795_251_600_000)
    orders = Orders(relay, frozenset())
    landed = now - tso.span(10_000)
    assert not orders.window_is_due(landed, now)
    relay.appointments.make(Appointment(now + tso.span(3_600_000), "j", 0, 1, "d", "t"))
    assert not orders.window_is_due(landed, now)
    relay.appointments.make(Appointment(now - tso.span(1_000), "j", 1, 1, "d", "t"))
    assert orders.window_is_due(landed, now)
    assert not orders.window_is_due(now - tso.span(500), now)
