"""Hold shares of the tables: run a pump for each, and take over those of members that are gone.

Pumps with `[capture] shares = 3` are members of one group. Each writes a heartbeat to etcd, and all
work out the same owner of each share from the members that live. A member runs a pump of its own,
in a process, for each share that is its own.

Members may see each other differently for a while, and one that is frozen doesn't see that others
took its shares. Then a share has two pumps, which are replicas of each other, or none, and landing
waits. Neither can harm, so no member needs a lock.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from sluice.errors import SluiceError
from sluice.pump_service.config import Config, split_addr
from sluice.tidb import tso
from sluice.tidb.etcd import KeyListing, NodeStatus
from sluice.tidb.table_shares import Share

_log = logging.getLogger(__name__)

PREFIX = "/sluice/capture-shares"
_MISSED_BEATS = 5
"""A member counts as gone after so many heartbeats without a change of its entry."""
_FORGET_S = 600.0
"""Entries of members that are gone are removed after this time."""
_NEAR_TSO = tso.span(5_000)
"""How near the new owner's pump has to be before the former owner's one leaves."""
_RESTART_S, _MAX_RESTART_S = 1.0, 30.0


class SharePump(Protocol):
    """Represent the process of a pump that captures one share."""

    @property
    def node_id(self) -> str:
        """Return the pump's id in the registry."""

    def is_alive(self) -> bool:
        """Return whether the process runs."""

    def is_offline(self) -> bool:
        """Return whether the process has ended and its pump is offline."""

    def is_paused(self) -> bool:
        """Return whether the process has ended because an operator paused its pump."""

    def has_failed(self) -> bool:
        """Return whether an error has ended the capture for good; the pump still has readers."""

    def pause(self) -> None:
        """Order the pump to end; it is expected back."""

    def close(self) -> None:
        """Order the pump to go offline for good once every drainer has read it."""

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the process; kill it after `timeout_s`."""


class Etcd(Protocol):
    """Declare the methods of EtcdClient that are needed."""

    def put(self, key: str, value: bytes) -> int: ...

    def range_prefix(self, prefix: str) -> KeyListing: ...

    def delete(self, key: str) -> bool: ...


class Nodes(Protocol):
    """Declare the methods of Registry that are needed."""

    def pumps(self) -> list[NodeStatus]: ...

    def drainers(self) -> list[NodeStatus]: ...


def owners(members: Mapping[str, Collection[int]], count: int) -> dict[int, str]:
    """Return the member that owns each of `count` shares.

    `members` has the shares that each declines. Every member works out the same. Each has at most
    its part of the shares, as long as others don't decline. A share without an entry has no owner.
    """
    found: dict[int, str] = {}
    loads = Counter[str]()
    limit = -(-count // max(len(members), 1))
    for number in range(1, count + 1):
        willing = [member for member, declined in members.items() if number not in declined]
        # Others stay where they are if a member comes or goes, as far as equal parts allow it.
        ranked = sorted(willing, key=lambda member: blake2b(f"{number} {member}".encode()).digest())
        free = [member for member in ranked if loads[member] < limit]
        for member in (free or ranked)[:1]:
            found[number] = member
            loads[member] += 1
    return found


@dataclass(slots=True)
class _Seen:
    """A member's entry, and when it was other than before."""

    value: bytes
    changed_at: float
    declined: frozenset[int]


@dataclass(slots=True)
class _Held:
    """A share's pump, and when its process may be started again."""

    pump: SharePump
    is_leaving: bool = False
    not_before: float = 0.0
    delay_s: float = field(default=_RESTART_S)


class ShareHolder:
    """Be a member of the group: call `step` every `heartbeat_interval` seconds from one thread."""

    def __init__(
        self,
        config: Config,
        etcd: Etcd,
        registry: Nodes,
        launch: Callable[[Config], SharePump],
        gc_safe_point: Callable[[], int],
    ) -> None:
        """Create the share holder.

        `launch` starts the process of a pump, `gc_safe_point` asks PD for the cluster's.
        """
        self._config, self._etcd, self._registry = config, etcd, registry
        self._launch, self._gc_safe_point = launch, gc_safe_point
        self._count = config.capture.shares
        self.member = config.node_id or config.advertise_addr
        self._seen: dict[str, _Seen] = {}
        self._held: dict[int, _Held] = {}
        self._declined: set[int] = set()
        self._beat = 0

    @property
    def shares(self) -> list[int]:
        """Return the shares that have a pump here."""
        return sorted(self._held)

    def run(self, stop: threading.Event) -> None:
        """Step until `stop`, then pause all pumps."""
        while not stop.is_set():
            try:
                self.step(time.monotonic())
            except SluiceError as error:
                _log.warning("members of the group are unknown now, pumps go on: %s", error)
            stop.wait(self._config.heartbeat_interval)
        self.pause()

    def pause(self) -> None:
        """End all pumps; they are expected back."""
        for held in self._held.values():
            held.pump.pause()
        for held in self._held.values():
            held.pump.join(_MAX_RESTART_S)

    def step(self, now: float) -> None:
        """Write the heartbeat, read the others', and start and end pumps.

        `now` is the monotonic clock. Raises EtcdError, RegistryError, PDError.
        """
        self._watch_pumps(now)
        self._beat += 1
        entry = {"beat": f"{time.time_ns()}-{self._beat}", "declined": sorted(self._declined)}
        self._etcd.put(self._key(self.member), json.dumps(entry).encode())
        own = {
            number
            for number, member in owners(self._members(now), self._count).items()
            if member == self.member
        }
        for number in sorted((own | self._stored()) - self._held.keys()):
            self._held[number] = _Held(self._start(number))
            _log.info("share taken share=%d/%d member=%s", number, self._count, self.member)
        for number in sorted(self._held.keys() - own):
            held = self._held[number]
            if not held.is_leaving and self._has_successor(number, held.pump.node_id):
                held.is_leaving = True
                held.pump.close()
                _log.info("share left share=%d/%d member=%s", number, self._count, self.member)

    def _watch_pumps(self, now: float) -> None:
        """Start pumps again that died, and let go of those that are offline."""
        for number, held in list(self._held.items()):
            if held.pump.is_alive():
                if held.pump.has_failed() and number not in self._declined:
                    self._declined.add(number)
                    _log.error(
                        "capture has ended, others may try share=%d/%d pump=%s",
                        number,
                        self._count,
                        held.pump.node_id,
                    )
                continue
            if held.pump.is_offline():
                if not held.is_leaving:  # an operator wants it so
                    self._declined.add(number)
                del self._held[number]
                # All of it was read. The next one begins at what is landed then.
                shutil.rmtree(self._folder(number), ignore_errors=True)
            elif held.pump.is_paused():  # until this process starts again; its data are kept
                if number not in self._declined:
                    self._declined.add(number)
                    _log.info(
                        "pump is paused, others may have its share share=%d/%d pump=%s",
                        number,
                        self._count,
                        held.pump.node_id,
                    )
            elif now >= held.not_before:
                held.not_before = now + held.delay_s
                held.delay_s = min(held.delay_s * 2, _MAX_RESTART_S)
                held.is_leaving = False
                held.pump = self._start(number)

    def _members(self, now: float) -> dict[str, Collection[int]]:
        """Return the members that live, with the shares that each declines."""
        found = self._etcd.range_prefix(f"{PREFIX}/{self._count}/").items
        entries = {item.key.rsplit("/", 1)[1]: item.value for item in found}
        for member in self._seen.keys() - entries.keys():
            del self._seen[member]
        for member, value in entries.items():
            seen = self._seen.get(member)
            if seen is None or seen.value != value:
                self._seen[member] = _Seen(value, now, _declined(value))
            elif now - seen.changed_at > _FORGET_S:
                self._etcd.delete(self._key(member))
        timeout_s = _MISSED_BEATS * self._config.heartbeat_interval
        return {
            member: seen.declined
            for member, seen in self._seen.items()
            if member == self.member or now - seen.changed_at <= timeout_s
        }

    def _has_successor(self, number: int, node_id: str) -> bool:
        """Return whether another pump of the share is as far as the one here.

        Without a pipeline it is unknown what is still wanted: a copy may be under way that begins
        with what the pump here has.
        """
        pumps = self._registry.pumps()
        own = next((pump for pump in pumps if pump.node_id == node_id), None)
        has_readers = any(each.state != "offline" for each in self._registry.drainers())
        return (own is not None and has_readers) and any(
            pump.is_replica_of(own)
            and pump.node_id != node_id
            and pump.state == "online"
            and pump.max_commit_ts >= own.max_commit_ts - _NEAR_TSO
            for pump in pumps
        )

    def _start(self, number: int) -> SharePump:
        """Start the pump of a share. A new one begins at what every pipeline has landed."""
        config, share = self._config, Share(number, self._count)
        folder = self._folder(number)
        capture = replace(config.capture, shares=0, share=share)
        if not (folder / ".node").exists():
            capture = replace(capture, start_ts=self._begin(share) or capture.start_ts)
        return self._launch(
            replace(
                config,
                addr=_address(config.addr, number),
                advertise_addr=_address(config.advertise_addr, number),
                node_id=f"{self.member}-{number}-of-{self._count}",
                data_dir=str(folder),
                socket="",
                capture=capture,
            )
        )

    def _begin(self, share: Share) -> int:
        """Return the TSO behind which a share's new pump begins; 0 if no reader wants history.

        That is what every pipeline has landed. Where TiKV has it no longer, it is what the share's
        former pump had come to: its own claim keeps the versions behind.
        """
        drainers = self._registry.drainers()
        landed = [each.max_commit_ts for each in drainers if each.state != "offline"]
        former = [
            pump.max_commit_ts
            for pump in self._registry.pumps()
            if pump.captured_share == str(share) and pump.state != "offline"
        ]
        candidates = [min(landed, default=0), *sorted(former)]
        kept = self._gc_safe_point()
        begin = next((ts for ts in candidates if ts >= kept), 0)
        if any(candidates) and begin != candidates[0]:
            _log.error(
                "share begins behind what is landed: landing needs its former pump's disk share=%s"
                " landed_ts=%d gc_safe_point=%d begin_ts=%d",
                share,
                candidates[0],
                kept,
                begin,
            )
        return begin

    def _stored(self) -> set[int]:
        """Return the shares of which there are data here: readers may want them of no other pump.

        Where others own them by now, their pumps leave once all is read.
        """
        numbers = range(1, self._count + 1)
        return {number for number in numbers if (self._folder(number) / ".node").exists()}

    def _folder(self, number: int) -> Path:
        return Path(self._config.data_dir) / f"share-{number}-of-{self._count}"

    def _key(self, member: str) -> str:
        return f"{PREFIX}/{self._count}/{member}"


def _declined(value: bytes) -> frozenset[int]:
    try:
        return frozenset(map(int, json.loads(value)["declined"]))
    except (ValueError, TypeError, KeyError):
        return frozenset()


def _address(address: str, number: int) -> str:
    """Return the address of a share's pump: the ports follow the holder's, which has none."""
    host, port = split_addr(address)
    return f"{host}:{int(port) + number - 1}"
