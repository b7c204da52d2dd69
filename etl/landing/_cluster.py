"""Hold landing's connections to the upstream: PD, TiKV, and etcd with the registry."""

from __future__ import annotations

import time
from collections.abc import Iterable

from sluice.errors import SluiceError
from sluice.etl.settings import Upstream
from sluice.tidb import EtcdClient, NodeStatus, PDClient, Registry, TiKVClient
from sluice.tidb.etcd import parse_version, tidb_versions

WITHOUT_BINLOGS = (8, 4)
"""The first version of TiDB that writes none."""
_CHECK_INTERVAL_S = 30.0


class NoBinlogsError(SluiceError):
    """A TiDB writes no binlogs, and no pump captures its changes; names the server."""

    transient = True
    hint = "start a pump that captures from TiKV: `sluice capture --check` names its start-ts"


def check_binlogs_written(pumps: Iterable[NodeStatus], etcd: EtcdClient) -> None:
    """Raise NoBinlogsError if changes of a TiDB would be missed. Raises EtcdError."""
    counting = [pump for pump in pumps if pump.state != "offline"]
    if any(pump.captured_cluster_id is not None for pump in counting):
        return
    for address, version in tidb_versions(etcd).items():
        if parse_version(version) >= WITHOUT_BINLOGS:
            raise NoBinlogsError(
                f"TiDB {address} has version {version!r}, which writes no binlogs, and no pump in"
                " the registry captures changes from TiKV: what it commits would be missing"
            )


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
        self._check_due = 0.0

    @property
    def id(self) -> int:
        """Return the cluster's id from PD."""
        return self.pd.cluster_id

    def pumps_that_count(self) -> list[NodeStatus]:
        """Return the pumps in the registry that are not offline."""
        return [pump for pump in self.registry.pumps() if pump.state != "offline"]

    def check_binlogs_written(self) -> None:
        """Call `check_binlogs_written`, every 30 s at most unless it fails."""
        if time.monotonic() >= self._check_due:
            check_binlogs_written(self.registry.pumps(), self._etcd)
            self._check_due = time.monotonic() + _CHECK_INTERVAL_S

    def close(self) -> None:
        """Close the connections."""
        self._etcd.close()
        self.tikv.close()
        self.pd.close()
