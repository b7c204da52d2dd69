"""Limit what connections take of the process, from accept to close.

Counted are descriptors and bytes, over all connections together. A newcomer is refused only if no
connection can be ended for it. The one to end is that which has completed no call for longest,
first among addresses that have never written. So a crowd of connections shuts no writer out, and
the memory of 200 is that of 8,000.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Callable

from sluice.pump_service.config import ROLES

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 8192
"""descriptors that connections may hold, if the limit of open files allows as many"""
MAX_BYTES = 64 << 20
"""of all that is kept for connections besides complete calls and large uploads"""
ACCEPTED_CONNECTION_BYTES = 8 << 10
"""a socket, its transport and the protocol that looks at its first bytes"""
TLS_CONNECTION_BYTES = 128 << 10
"""besides: asyncio's buffers and OpenSSL's state"""
FAST_PATH_CONNECTION_BYTES = 32 << 10
"""besides: an HTTP/2 connection with its header tables"""
HTTP1_CONNECTION_BYTES = 128 << 10
"""besides: a request of the largest size, as h11 keeps it"""
_SETTLED_AFTER_S = 10.0
"""A connection of an address that has written is ended for others only after so long without a
call.
"""
_MAX_REMEMBERED_CLIENTS = 4096
"""addresses that have written"""
_REPORT_INTERVAL_S = 10.0
_IPV6_PREFIX_BITS = 64
"""Prefix length in bits: a client with one address of such a network has them all."""


def _nothing() -> None:
    pass


def _never() -> bool:
    return False


class ConnectionSlot:
    """The place of one connection.

    `end` ends it; `is_busy` is true while it waits for the pump.
    """

    __slots__ = ("_places", "end", "group", "is_busy", "is_open", "roles", "size", "used")

    def __init__(self, places: ConnectionSlots, group: str, size: int) -> None:
        self._places = places
        self.group = group
        self.size = size
        self.used = time.monotonic()
        """when it was taken, or when the last of its calls was complete"""
        self.is_open = True
        self.roles = ROLES
        """what its client may do"""
        self.end: Callable[[], object] = _nothing
        self.is_busy: Callable[[], bool] = _never

    def resize(self, size: int) -> bool:
        """Change what it takes to `size` bytes, ending others if that is too much.

        False if there is no room.
        """
        grows = size > self.size
        if self.is_open:
            self._places.size += size - self.size
        self.size = size
        return not grows or self._places.make_room(self)

    def complete(self) -> None:
        """Note that a call is complete."""
        self.used = time.monotonic()

    def mark_writer(self) -> None:
        """Note that the store took binlogs of this address."""
        self.used = time.monotonic()
        if self.group not in self._places.writers:
            self._places.note_writer(self.group)

    def close(self) -> None:
        """Give the place up. May be called twice."""
        if self.is_open:
            self.is_open = False
            self._places.release(self)
            self.end, self.is_busy = _nothing, _never  # they know the connection


class ConnectionSlots:
    """Belongs to the loop's thread. One address, or one IPv6 network, gets half of everything."""

    def __init__(self, descriptors: int = MAX_CONNECTIONS, limit: int = MAX_BYTES) -> None:
        """Create the connection slots; `limit`: bytes."""
        self.descriptors = min(descriptors, MAX_CONNECTIONS)
        self.limit = limit
        self.used = 0
        """descriptors"""
        self.size = 0
        """bytes"""
        self.writers: dict[str, None] = {}
        self._by_group: Counter[str] = Counter()
        # in the order of their last calls, as far as that is known
        self._strangers: dict[ConnectionSlot, float] = {}
        self._settled: dict[ConnectionSlot, float] = {}  # the same of addresses that have written
        self._reported = -_REPORT_INTERVAL_S
        self._ended = 0

    def acquire(self, host: str, size: int = ACCEPTED_CONNECTION_BYTES) -> ConnectionSlot | None:
        """Take a connection of `host` that takes `size` bytes; None if there is no room."""
        place = ConnectionSlot(self, client_group(host), size)
        self.used += 1
        self.size += size
        self._by_group[place.group] += 1
        (self._settled if place.group in self.writers else self._strangers)[place] = place.used
        if self._by_group[place.group] > self.descriptors // 2 and not self._end_one_of(place):
            self._refuse(place)
            return None
        if not self.make_room(place):
            self._refuse(place)
            return None
        return place

    def release(self, place: ConnectionSlot) -> None:
        """Take back what a place took."""
        self.used -= 1
        self.size -= place.size
        self._by_group[place.group] -= 1
        if not self._by_group[place.group]:
            del self._by_group[place.group]
        self._strangers.pop(place, None)
        self._settled.pop(place, None)

    def has_written(self, place: ConnectionSlot) -> bool:
        """Return whether the store took binlogs of its address."""
        return place.group in self.writers

    def note_writer(self, group: str) -> None:
        """Note that the store took binlogs of an address."""
        if len(self.writers) >= _MAX_REMEMBERED_CLIENTS:
            del self.writers[next(iter(self.writers))]
        self.writers[group] = None

    def has_room(self) -> bool:
        """Return whether more may be kept without ending others."""
        return self.size * 4 <= self.limit * 3

    def make_room(self, wanted: ConnectionSlot) -> bool:
        """End others until all is within the limits; False if that isn't enough."""
        while self.used > self.descriptors or self.size > self.limit:
            now = time.monotonic()
            if self._end_idlest(self._strangers, wanted, now):
                continue
            if wanted.group in self.writers and self._end_idlest(
                self._settled, wanted, now - _SETTLED_AFTER_S
            ):
                continue
            self._report(wanted.group, "no room for")
            return False
        return True

    def _end_idlest(
        self, among: dict[ConnectionSlot, float], wanted: ConnectionSlot, before: float
    ) -> bool:
        """End the one that has completed no call for longest, and none since `before`."""
        for _ in range(len(among)):
            place, seen = next(iter(among.items()))
            if among is self._strangers and place.group in self.writers:
                del among[place]
                self._settled[place] = place.used
            elif place is wanted or place.used > min(seen, before) or place.is_busy():
                del among[place]
                among[place] = place.used
            else:
                self._end(place)
                return True
        return False

    def _end_one_of(self, newcomer: ConnectionSlot) -> bool:
        """End the idlest connection of the newcomer's address."""
        for among in (self._strangers, self._settled):
            for place in among:
                if place.group == newcomer.group and place is not newcomer and not place.is_busy():
                    self._end(place)
                    return True
        return False

    def _end(self, place: ConnectionSlot) -> None:
        end = place.end
        place.close()  # its descriptor follows in the loop's next round
        end()
        self._ended += 1
        self._report(place.group, "ended an idle connection of")

    def _refuse(self, place: ConnectionSlot) -> None:
        place.close()
        self._report(place.group, "refused a connection of")

    def _report(self, group: str, what: str) -> None:
        now = time.monotonic()
        if now - self._reported >= _REPORT_INTERVAL_S:
            self._reported = now
            _log.warning(
                "%s %s: connections take %d descriptors of %d and %d bytes of %d; %d idle ones were"
                " ended since the start, half is for one address",
                what,
                group,
                self.used,
                self.descriptors,
                self.size,
                self.limit,
                self._ended,
            )


def client_group(host: str) -> str:
    """Return what an address counts as: itself, or the network that an IPv6 address is in."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _IPV6_PREFIX_BITS), strict=False))
