"""The pipeline's metrics: ``sluice metrics``, which outlives the tasks."""

from __future__ import annotations

import sys
import urllib.request

from sluice.devstack.launch.service import LOOPBACK, Service, StackPaths

NAME = "metrics"
PORTS = (NAME,)


def metrics(site: StackPaths) -> Service:
    """Return the endpoint; it needs no other part, and reports those that don't answer."""
    port = site.ports[NAME]
    address = f"{LOOPBACK}:{port}"

    def probe() -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(f"http://{address}/", timeout=2).close()

    return Service(
        name=NAME,
        argv=(
            sys.executable,
            "-m",
            "sluice.cli",
            "metrics",
            "--listen",
            address,
            "--config",
            str(site.config),
        ),
        ports={"http": port},
        probe=probe,
        summary=f"http://{address}/metrics",
    )
