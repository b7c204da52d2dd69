"""Which connection each unfinished Prewrite came from, and whether the TiDB behind it is gone.

A pump can't tell which TiDB is at the other end of a connection, only its IP address. So it notes which TiDB servers
etcd has at that address while a connection sends Prewrites. They are gone once the connection is closed and etcd has
none of them any more, nor any other at that address that isn't a new process in the place of one of them. In doubt (an
address that etcd doesn't know: a proxy, a name that doesn't resolve; another TiDB at the same address; a pump that was
started again; etcd away) nobody is gone.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from sluice.pump_service.store import Record
from sluice.tidb.binlog_kinds import PREWRITE
from sluice.tidb.etcd import TiDBServer

_log = logging.getLogger(__name__)

DISCONNECT_GRACE_S = 3.0
"""A connection must have been closed for so long: TiDB's next one, or its own end of the transaction, may be on the
way.
"""
_POLL_INTERVAL_S = 10.0
_URGENT_POLL_INTERVAL_S = 0.5
_RECENT_S = 0.5
_CLEANUP_INTERVAL_S = 60.0


class ClientConnection:
    """A connection that may send Prewrites."""

    __slots__ = ("closed_at", "ip", "servers", "writes")

    def __init__(self, ip: str) -> None:
        self.ip = ip
        self.writes = False
        self.closed_at = 0.0  # monotonic; 0 while it is open
        self.servers: set[TiDBServer] = set()
        """those that etcd had at this address while Prewrites came"""

    def close(self) -> None:
        """The connection is lost."""
        self.closed_at = time.monotonic()


_LOCAL_CLIENT = ClientConnection("")
"""The client at the other end of a Unix socket: never gone."""


class ClientLiveness:
    """`servers()` reads etcd and may raise; `is_open(start_ts)` says whether a Prewrite waits for its verdict.
    `connect`, `sent` and `ClientConnection.close` are quick and may be called from the event loop; a thread of its own,
    from `start` to `stop`, asks etcd.
    """

    def __init__(self, servers: Callable[[], Iterable[TiDBServer]], is_open: Callable[[int], bool]) -> None:
        self._servers, self._is_open = servers, is_open
        self._of: dict[int, ClientConnection] = {}
        self._writers: set[ClientConnection] = set()
        self._names: dict[str, frozenset[str]] = {}
        self._seen: tuple[float, list[TiDBServer]] = (-_RECENT_S, [])
        self._hurry = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pump-topology", daemon=True)

    def start(self) -> None:
        """Begin to look at etcd."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a question under way ends by its own time-out."""
        self._stop.set()
        self._hurry.set()

    def connect(self, ip: str) -> ClientConnection:
        """A connection from that address."""
        return ClientConnection(_normalized_ip(ip))

    def sent(self, records: Sequence[Record], origin: ClientConnection | None) -> bool:
        """Note that the connection gives these records; None: not known. Returns whether
        all verdicts among them are the first ones on Prewrites that came since the pump began.
        """
        of = self._of
        all_first = True
        for tp, start_ts, _, _ in records:
            if tp != PREWRITE:
                if of.pop(start_ts, None) is None:
                    all_first = False
                continue
            if origin is None:
                of[start_ts] = _LOCAL_CLIENT
                continue
            of[start_ts] = origin
            if not origin.writes:
                origin.writes = True
                self._writers.add(origin)
                self._hurry.set()
        return all_first

    def is_gone(self, start_ts: int) -> bool:
        """Whether the TiDB that sent this Prewrite is dead, for all that is known. Asks etcd, and so may take its
        time-out.
        """
        origin = self._of.get(start_ts)
        if origin is None or not origin.closed_at or not origin.servers:
            return False
        if time.monotonic() - origin.closed_at < DISCONNECT_GRACE_S:
            return False
        try:
            now = self._servers_at(origin.ip, self._recent())
        except Exception as error:
            _log.warning("etcd can't be asked whether the TiDB at %s lives: %s", origin.ip, error)
            return False
        places = {server.address for server in origin.servers}
        gone = all(server not in origin.servers and server.address in places and server.started for server in now)
        if gone:
            names = ", ".join(sorted(places))
            _log.warning(
                "the TiDB (%s) that sent the Prewrite of transaction %d is gone: TiKV decides now", names, start_ts
            )
        return gone

    def _recent(self) -> list[TiDBServer]:
        """What etcd has, or had a moment ago: a TiDB that dies leaves hundreds of Prewrites to ask about."""
        at, servers = self._seen
        if time.monotonic() - at >= _RECENT_S:
            at, servers = time.monotonic(), list(self._servers())
            self._seen = at, servers
        return servers

    def _servers_at(self, ip: str, servers: Iterable[TiDBServer]) -> list[TiDBServer]:
        return [server for server in servers if ip in self._addresses(server.host)]

    def _addresses(self, host: str) -> frozenset[str]:
        """The IP addresses of a host; what a name last resolved to, if it doesn't any more."""
        try:
            return frozenset((_normalized_ip(str(ipaddress.ip_address(host))),))
        except ValueError:
            pass
        try:
            found = frozenset(_normalized_ip(str(info[4][0])) for info in socket.getaddrinfo(host, None))
        except OSError:
            return self._names.get(host, frozenset())
        self._names[host] = found | self._names.get(host, frozenset())
        return self._names[host]

    def _run(self) -> None:
        forgotten, before = time.monotonic(), set(self._of)
        while not self._stop.is_set():
            self._hurry.wait(_POLL_INTERVAL_S)
            self._hurry.clear()
            try:
                self._look()
            except Exception as error:
                _log.debug("the TiDB servers can't be read from etcd: %s", error)
            if time.monotonic() - forgotten >= _CLEANUP_INTERVAL_S:
                forgotten, before = time.monotonic(), self._forget(before)
            self._stop.wait(_URGENT_POLL_INTERVAL_S)

    def _look(self) -> None:
        # Only who has sent Prewrites before etcd is asked: by then a TiDB has written itself there.
        writers = []
        for origin in list(self._writers):
            if origin.closed_at:
                self._writers.discard(origin)
            else:
                writers.append(origin)
        if not writers:
            return
        servers = list(self._servers())
        by_ip = {ip: self._servers_at(ip, servers) for ip in {origin.ip for origin in writers}}
        for origin in writers:
            for server in by_ip[origin.ip]:
                if server not in origin.servers:
                    origin.servers.add(server)
                    _log.info("Prewrites from %s: a TiDB there is %s (started %d)", origin.ip, *server)

    def _forget(self, before: set[int]) -> set[int]:
        """Drops what the store never took, or has ended itself."""
        for start_ts in before:
            if start_ts in self._of and not self._is_open(start_ts):
                self._of.pop(start_ts, None)
        return set(self._of)


def _normalized_ip(ip: str) -> str:
    """An address in the one way of writing it; IPv4 in IPv6 as IPv4, without a zone."""
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        return ip
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
