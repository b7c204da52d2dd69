"""Hold landing's connections to the upstream: PD, TiKV, and etcd with the registry."""

from __future__ import annotations

from sluice.etl.settings import Upstream
from sluice.tidb import EtcdClient, NodeStatus, PDClient, Registry, TiKVClient


class UpstreamCluster:
    """One TiDB cluster.

    Its clients connect on first use and raise PDError, TiKVError, EtcdError, RegistryError.
    """

    def __init__(self, settings: Upstream) -> None:
        self.pd_urls = settings.pd_urls
        self.tls = settings.tls()
        self.pd = PDClient(settings.pd_urls, tls=self.tls)
        self.tikv = TiKVClient(self.pd, tls=self.tls)
        self._etcd = EtcdClient(settings.pd_urls, tls=self.tls)
        self.registry = Registry(self._etcd)

    @property
    def id(self) -> int:
        """Return the cluster's id from PD."""
        return self.pd.cluster_id

    def pumps_that_count(self) -> list[NodeStatus]:
        """Return the pumps in the registry that are not offline."""
        return [pump for pump in self.registry.pumps() if pump.state != "offline"]

    def close(self) -> None:
        """Close the connections."""
        self._etcd.close()
        self.tikv.close()
        self.pd.close()
