"""etcd: the registry in which pumps announce themselves (in a TiDB cluster it is part of PD)."""

from __future__ import annotations

import platform

from sluice.devstack.launch.service import (
    LOOPBACK,
    Service,
    ServiceNotReady,
    StackPaths,
    find_program,
    get_json,
)

PORTS = ("etcd-client", "etcd-peer")


def etcd(site: StackPaths) -> Service:
    """Return the etcd server, one member, reachable from this machine only."""
    client, peer = site.ports["etcd-client"], site.ports["etcd-peer"]
    client_url, peer_url = f"http://{LOOPBACK}:{client}", f"http://{LOOPBACK}:{peer}"
    data = site.data("etcd")

    def probe() -> None:
        answer = get_json(f"{client_url}/health")
        if str(answer.get("health")).lower() != "true":
            raise ServiceNotReady(f"etcd answers {answer}")

    return Service(
        name="etcd",
        argv=(
            find_program("etcd", "etcd-server"),
            "--name=sluice",
            f"--data-dir={data}",
            "--logger=zap",
            "--log-level=warn",
            "--log-outputs=stderr",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=sluice={peer_url}",
        ),
        # etcd refuses to start on ARM without this
        env={"ETCD_UNSUPPORTED_ARCH": "arm64"} if platform.machine() == "aarch64" else {},
        ports={"client": client, "peer": peer},
        probe=probe,
        prepare=lambda: data.mkdir(parents=True, exist_ok=True, mode=0o700),
        data=data,
        summary=client_url,
    )
