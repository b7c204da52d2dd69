"""Where the past is read: the archive as far as it goes, the relay log from there on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from etl.find.errors import FindError
from etl.settings import Settings
from relay import RelayLog, Window


@dataclass(frozen=True, slots=True)
class Stretch:
    """What was committed after `since` through `until` (TSO), in the log at `url`."""

    url: str
    log: RelayLog
    since: int
    until: int

    def windows(self) -> Iterator[Window]:
        """Raises RelayGapError, RelayCorruptError."""
        return self.log.windows(self.since, self.until)


@dataclass(frozen=True, slots=True)
class Past:
    """What there is of the past: from `first` (TSO) on, through `last`."""

    settings: Settings
    first: int
    last: int

    @classmethod
    def of(cls, settings: Settings) -> Past:
        """Raises FindError if there is nothing, relay errors."""
        relay = RelayLog.open(settings.relay.url)
        first, last = relay.first(), relay.last()
        if first is None or last is None:
            raise FindError(f"the relay log {relay.url} is empty: nothing has landed yet")
        return cls(settings, first.lo, last.hi)

    def stretches(self, since: int, until: int) -> list[Stretch]:
        """All that is there of (since, until], ascending. Raises relay errors."""
        since, until = max(since, self.first), min(until, self.last)
        relay = RelayLog.open(self.settings.relay.url)
        return [Stretch(relay.url, relay, since, until)] if since < until else []
