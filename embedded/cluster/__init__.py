"""A stand-in TiDB cluster: PD, TiKV and etcd as a client sees them, and a TiDB that replays a recording into pumps.

`python -m embedded.cluster --help` runs it as a process of its own.
"""

from embedded.cluster.server import Cluster, ClusterOptions

__all__ = ["Cluster", "ClusterOptions"]
