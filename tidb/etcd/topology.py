"""The TiDB servers of a cluster, as they register in PD's etcd.

TiDB 4.0 to 8.5 do, in domain/infosync:

    /topology/tidb/<host:port>/info   JSON with start_timestamp (s); written at the start, without
                                      a lease: it stays
    /topology/tidb/<host:port>/ttl    under a lease of 45 s that is kept alive: there while the
                                      server lives
    /tidb/server/info/<uuid>          JSON with ip, listening_port, start_timestamp; under a lease
                                      of ten minutes

`<host>` is the advertised address: an IP address, also [in brackets], or a name.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from sluice.tidb.etcd.client import EtcdClient

PREFIX = "/topology/tidb/"


class TiDBServer(NamedTuple):
    """A server that lives, as far as etcd knows.

    `address` is host:port; with `started` (Unix seconds, 0 if unknown) it identifies one of the
    processes that follow each other at an address.
    """

    address: str
    started: int

    @property
    def host(self) -> str:
        """Return the address without its port and brackets."""
        return self.address.rpartition(":")[0].strip("[]")


def tidb_servers(etcd: EtcdClient) -> list[TiDBServer]:
    """Return the servers with a live lease. Raises EtcdError."""
    alive, started = set(), {}
    for item in etcd.range_prefix(PREFIX).items:
        address, _, what = item.key.removeprefix(PREFIX).rpartition("/")
        if what == "ttl":
            alive.add(address)
        elif what == "info":
            started[address] = _started(item.value)
    return [TiDBServer(address, started.get(address, 0)) for address in sorted(alive)]


def _started(info: bytes) -> int:
    try:
        return int(json.loads(info)["start_timestamp"])
    except (ValueError, TypeError, KeyError):
        return 0
