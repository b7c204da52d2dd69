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
import re
from typing import NamedTuple

from sluice.tidb.etcd.client import EtcdClient

PREFIX = "/topology/tidb/"
WITHOUT_BINLOGS = (8, 4)
"""The first version of TiDB that writes none."""
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


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


def tidb_versions(etcd: EtcdClient) -> dict[str, str]:
    """Return what each server with a live lease calls its version, by address. Raises EtcdError."""
    alive, found = set(), {}
    for item in etcd.range_prefix(PREFIX).items:
        address, _, what = item.key.removeprefix(PREFIX).rpartition("/")
        if what == "ttl":
            alive.add(address)
        elif what == "info":
            try:
                found[address] = str(json.loads(item.value)["version"])
            except (ValueError, KeyError, TypeError):
                found[address] = ""
    return {address: found.get(address, "") for address in sorted(alive)}


def parse_version(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version of TiDB's or TiKV's; (0, 0) if there are none.

    TiDB puts the version of the MySQL that it speaks like in front of its own.
    """
    found = _VERSION.match(text.rpartition("-TiDB-")[2])
    return (int(found[1]), int(found[2])) if found is not None else (0, 0)
