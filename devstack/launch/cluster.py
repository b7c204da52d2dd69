"""The stand-in TiDB cluster: PD, TiKV and a TiDB that replays a recording into the pumps."""

from __future__ import annotations

import sys

import grpc

from sluice.devstack.launch.pump import HAS_CAPTURE
from sluice.devstack.launch.service import LOOPBACK, NO_RECORDING, Service, StackPaths, get_json

PORTS = ("cluster", "cluster-control", "cluster-sql")


def cluster(site: StackPaths) -> Service:
    """Return the stand-in cluster for the recording of `site`."""
    port, control, sql = (site.ports[name] for name in PORTS)

    def probe() -> None:
        get_json(f"http://{LOOPBACK}:{control}/status")
        with grpc.insecure_channel(
            f"{LOOPBACK}:{port}", options=[("grpc.enable_http_proxy", 0)]
        ) as channel:
            members = channel.unary_unary(
                "/pdpb.PD/GetMembers", request_serializer=None, response_deserializer=None
            )
            members(b"", timeout=5)

    live = str(site.recording) == NO_RECORDING
    return Service(
        name="cluster",
        argv=(
            sys.executable,
            "-m",
            "sluice.devstack.tidb",
            *(() if live else ("--recording", str(site.recording))),
            *(("--capture",) if HAS_CAPTURE else ()),
            "--etcd",
            f"http://{LOOPBACK}:{site.ports['etcd-client']}",
            "--listen",
            f"{LOOPBACK}:{port}",
            "--control",
            f"{LOOPBACK}:{control}",
            "--sql",
            f"{LOOPBACK}:{sql}",
        ),
        ports={"pd": port, "control": control, "sql": sql},
        probe=probe,
        needs=("etcd",),
        summary=(
            f"PD http://{LOOPBACK}:{port}, TiDB {LOOPBACK}:{sql},"
            f" control http://{LOOPBACK}:{control};"
            f" {'for live traffic' if live else f'plays {site.recording}'}"
        ),
    )
