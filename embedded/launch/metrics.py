"""The pipeline's metrics: ``sluice metrics``, which outlives the tasks."""

from __future__ import annotations

import sys
import urllib.request

from embedded.launch.part import LOOPBACK, Part, Site

NAME = "metrics"
PORTS = (NAME,)


def metrics(site: Site) -> Part:
    """The endpoint; it needs nobody, and tells who doesn't answer."""
    port = site.ports[NAME]
    address = f"{LOOPBACK}:{port}"

    def probe() -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(f"http://{address}/", timeout=2).close()

    return Part(
        name=NAME,
        argv=(sys.executable, "-m", "cli", "metrics", "--listen", address, "--config", str(site.config)),
        ports={"http": port},
        probe=probe,
        summary=f"http://{address}/metrics",
    )
