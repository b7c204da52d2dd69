"""Hold landing's connections to the upstream: PD, TiKV, and etcd with the registry."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sluice.errors import SluiceError
from sluice.etl.settings import Upstream
from sluice.tidb import EtcdClient, NodeStatus, PDClient, Registry, TiKVClient
from sluice.tidb.etcd import parse_version, tidb_versions
from sluice.tidb.etcd.topology import WITHOUT_BINLOGS

_CHECK_INTERVAL_S = 5.0


class NoBinlogsError(SluiceError):
    """Binlogs don't have all changes, and no pump captures them; names the reason."""

    transient = True
    hint = (
        "start a pump that captures from TiKV (`sluice pump -capture`), with a start-ts at or below"
        " what is landed (`sluice capture --check`); then `sluice verify`, for what was landed"
        " since the last TiDB stopped to write binlogs"
    )


def server_without_binlogs(etcd: EtcdClient) -> str:
    """Return address and version of a TiDB that writes no binlogs; "" without one.

    Raises EtcdError.
    """
    return next(
        (
            f"TiDB {address}, version {version!r},"
            for address, version in tidb_versions(etcd).items()
            if parse_version(version) >= WITHOUT_BINLOGS
        ),
        "",
    )


def pumps_to_read(
    pumps: Sequence[NodeStatus], server: str, source: str = "auto"
) -> Sequence[NodeStatus]:
    """Return the pumps of the registry that may be read, as [upstream] source has it.

    Those that capture alone if a `server` writes no binlogs ("" if all do). Raises NoBinlogsError
    if there is none.
    """
    if source == "binlog":
        if server:
            raise NoBinlogsError(
                f'{server} writes no binlogs, and [upstream] source is "binlog"',
                hint='set [upstream] source = "auto", and start a pump: `sluice pump -capture`',
            )
        return [pump for pump in pumps if pump.captured_cluster_id is None]
    if source == "auto" and not server:
        return pumps
    captured = [pump for pump in pumps if pump.captured_cluster_id is not None]
    if all(pump.state == "offline" for pump in captured):
        why = f"{server} writes no binlogs" if server else '[upstream] source is "capture"'
        raise NoBinlogsError(
            f"{why}, and no pump in the registry captures changes from TiKV: what is committed"
            " would be missing"
        )
    return captured


class UpstreamCluster:
    """One TiDB cluster.

    Its clients connect on first use and raise PDError, TiKVError, EtcdError, RegistryError.
    """

    def __init__(self, settings: Upstream) -> None:
        self.pd_urls, self.source = settings.pd_urls, settings.source
        self.tls = settings.tls()
        self.pd = PDClient(settings.pd_urls, tls=self.tls)
        self.tikv = TiKVClient(self.pd, tls=self.tls)
        self._etcd = EtcdClient(settings.pd_urls, tls=self.tls)
        self.registry = Registry(self._etcd)
        self._check_due, self._server = 0.0, ""

    @property
    def id(self) -> int:
        """Return the cluster's id from PD."""
        return self.pd.cluster_id

    def pumps_that_count(self) -> list[NodeStatus]:
        """Return the pumps in the registry that are not offline."""
        return [pump for pump in self.registry.pumps() if pump.state != "offline"]

    def pumps(self) -> Sequence[NodeStatus]:
        """Call `pumps_to_read`; the TiDB servers are looked at every 5 s."""
        pumps = self.registry.pumps()
        if time.monotonic() >= self._check_due:
            self._server = server_without_binlogs(self._etcd)
            self._check_due = time.monotonic() + _CHECK_INTERVAL_S
        return pumps_to_read(pumps, self._server, self.source)

    def close(self) -> None:
        """Close the connections."""
        self._etcd.close()
        self.tikv.close()
        self.pd.close()
