"""Record which connection sent each Prewrite, and whether the TiDB of an unfinished one is gone.

A pump knows only the IP address behind a connection, not which TiDB it is. So it records which TiDB
servers etcd lists at that address while a connection sends Prewrites. Those servers are gone if all
of these hold:

- the connection is closed;
- etcd lists none of them any more;
- etcd lists no other TiDB at that address, except a new process in the place of one of them.

In doubt no TiDB counts as gone. That is so for an address unknown to etcd (a proxy, a name that
doesn't resolve), for another TiDB at the same address, after a restart of the pump, and while etcd
is unreachable.

A Prewrite whose start_ts has come before is found here, too, while its transaction is open and for
some time after its end. Later it is doubtful, as is each one after a restart of the pump whose
transaction began before. The store looks each of them up.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from sluice.pump_service import kernel
from sluice.pump_service.store import DoubtfulRecords, Record
from sluice.tidb.binlog_kinds import PREWRITE
from sluice.tidb.etcd import TiDBServer

_log = logging.getLogger(__name__)

DISCONNECT_GRACE_S = 3.0
"""How long a connection must be closed before its TiDB may count as gone.

TiDB's next connection, or its own end of the transaction, may be on the way.
"""
_POLL_INTERVAL_S = 10.0
_URGENT_POLL_INTERVAL_S = 0.5
_RECENT_S = 0.5
_CLEANUP_INTERVAL_S = 60.0


class ClientConnection:
    """Represent a connection that may send Prewrites."""

    __slots__ = ("closed_at", "ip", "servers", "writes")

    def __init__(self, ip: str) -> None:
        self.ip = ip
        self.writes = False
        self.closed_at = 0.0  # monotonic; 0 while it is open
        self.servers: set[TiDBServer] = set()
        """TiDB servers that etcd listed at this address while Prewrites arrived."""

    def close(self) -> None:
        """Record that the connection is lost."""
        self.closed_at = time.monotonic()


_LOCAL_CLIENT = ClientConnection("")
"""The client of a Unix socket, which never counts as gone."""
_LOCAL_CLIENT.writes = True


class ClientLiveness:
    """Track which TiDB sent each open Prewrite, and ask etcd whether it lives.

    `servers()` reads etcd and may raise; `is_open(start_ts)` returns whether a Prewrite waits for
    its outcome. `connect`, `record_prewrites` and `ClientConnection.close` are quick, so the event
    loop may call them. A thread, from `start` to `stop`, polls etcd.
    """

    def __init__(
        self,
        servers: Callable[[], Iterable[TiDBServer]],
        is_open: Callable[[int], bool],
    ) -> None:
        self._servers, self._is_open = servers, is_open
        self._of: dict[int, ClientConnection] = {}
        self._ended = kernel.no_ended()
        self.old_ts = 0
        """A transaction that began by this TSO may be in the store."""
        self._writers: set[ClientConnection] = set()
        self._names: dict[str, frozenset[str]] = {}
        self._seen: tuple[float, list[TiDBServer]] = (-_RECENT_S, [])
        self._hurry = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pump-topology", daemon=True)

    def start(self) -> None:
        """Start polling etcd."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a running query ends by its own timeout."""
        self._stop.set()
        self._hurry.set()

    def connect(self, ip: str) -> ClientConnection:
        """Return a ClientConnection for that address."""
        return ClientConnection(_normalized_ip(ip))

    def record_prewrites(
        self, records: Sequence[Record], origin: ClientConnection | None
    ) -> DoubtfulRecords | None:
        """Record that the connection (None: unknown) sent these records.

        Returns None if every outcome among them is the first one of a Prewrite that came since the
        pump started, and no Prewrite can be there already. The outcome of an `old` one is doubtful,
        too: of a transaction that has ended it isn't the first.
        """
        if origin is None:
            origin = _LOCAL_CLIENT
        repeated: list[Record] = []
        old: list[Record] = []
        all_first = kernel.note(records, origin, self._of, self._ended, self.old_ts, repeated, old)
        if not origin.writes and any(record.tp == PREWRITE for record in records):
            origin.writes = True
            self._writers.add(origin)
            self._hurry.set()
        return None if all_first and not repeated and not old else DoubtfulRecords(repeated, old)

    def is_gone(self, start_ts: int) -> bool:
        """Return whether the TiDB that sent this Prewrite is dead, as far as is known.

        May query etcd.
        """
        origin = self._of.get(start_ts)
        if origin is None or not origin.closed_at or not origin.servers:
            return False
        if time.monotonic() - origin.closed_at < DISCONNECT_GRACE_S:
            return False
        try:
            now = self._servers_at(origin.ip, self._recent())
        except Exception as error:
            _log.warning("can't query etcd for the TiDB at %s: %s", origin.ip, error)
            return False
        places = {server.address for server in origin.servers}
        gone = all(
            server not in origin.servers and server.address in places and server.started
            for server in now
        )
        if gone:
            names = ", ".join(sorted(places))
            _log.warning(
                "the TiDB (%s) that sent the Prewrite of transaction %d is gone: TiKV decides its"
                " outcome",
                names,
                start_ts,
            )
        return gone

    def _recent(self) -> list[TiDBServer]:
        """Return etcd's servers, cached for `_RECENT_S`.

        A TiDB that dies leaves hundreds of Prewrites to check.
        """
        at, servers = self._seen
        if time.monotonic() - at >= _RECENT_S:
            at, servers = time.monotonic(), list(self._servers())
            self._seen = at, servers
        return servers

    def _servers_at(self, ip: str, servers: Iterable[TiDBServer]) -> list[TiDBServer]:
        return [server for server in servers if ip in self._addresses(server.host)]

    def _addresses(self, host: str) -> frozenset[str]:
        """Return the IP addresses of a host; the last known ones if it no longer resolves."""
        try:
            return frozenset((_normalized_ip(str(ipaddress.ip_address(host))),))
        except ValueError:
            pass
        try:
            found = frozenset(
                _normalized_ip(str(info[4][0])) for info in socket.getaddrinfo(host, None)
            )
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
                self._poll_servers()
            except Exception as error:
                _log.debug("can't read the TiDB servers from etcd: %s", error)
            if time.monotonic() - forgotten >= _CLEANUP_INTERVAL_S:
                forgotten, before = time.monotonic(), self._drop_before(before)
            self._stop.wait(_URGENT_POLL_INTERVAL_S)

    def _poll_servers(self) -> None:
        # Only connections that sent Prewrites before the query: their TiDB is in etcd by now.
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
                    _log.info(
                        "Prewrites from %s: a TiDB there is %s (started %d)", origin.ip, *server
                    )

    def _drop_before(self, before: set[int]) -> set[int]:
        """Drop Prewrites that the store rejected or has ended: another one has to be looked up."""
        for start_ts in before:
            if start_ts in self._of and not self._is_open(start_ts):
                self.old_ts = max(self.old_ts, start_ts)
                self._of.pop(start_ts, None)
        return set(self._of)


def _normalized_ip(ip: str) -> str:
    """Return an address in one spelling: IPv4-mapped IPv6 as IPv4, without a zone."""
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        return ip
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
