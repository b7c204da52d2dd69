"""What applying asks of the windows that it applies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from relay import Appointments, Control, Decisions, Window


class AppliedLog(Protocol):
    """A log of windows as `relay.WindowLog` has them, with what may hold up who applies them. See `relay.RelayLog`."""

    @property
    def url(self) -> str: ...

    @property
    def appointments(self) -> Appointments: ...

    @property
    def decisions(self) -> Decisions: ...

    def next(self, lo: int) -> Window | None: ...

    def find(self, ts: int) -> Window | None: ...

    def windows(self, from_ts: int, to_ts: int | None = None) -> Iterator[Window]: ...

    def control(self) -> Control: ...
