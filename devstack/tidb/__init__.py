"""A stand-in TiDB cluster: PD, TiKV and etcd as a client sees them, and a TiDB.

The TiDB replays a recording into pumps.

`python -m sluice.devstack.tidb --help` runs it as a process of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.devstack.tidb.server import Cluster, ClusterOptions

__all__ = ["Cluster", "ClusterOptions"]


def __getattr__(name: str) -> Any:
    # On first use: the player and the workload, which the server runs, import parts of this package
    # themselves.
    if name not in __all__:
        raise AttributeError(f"module 'sluice.devstack.tidb' has no attribute {name!r}")
    from sluice.devstack.tidb import server

    return getattr(server, name)
