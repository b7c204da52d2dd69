"""Start the stand-in TiDB cluster, on the ports that TiDB's parts have.

    python -m deploy.start.standin HOST

HOST is the name under which the others know it. With STANDIN_RECORDING, a folder, it plays that
recording; without, it is there for live traffic (`deploy.start.traffic` begins either). ETCD_URL
is the etcd behind PD.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from deploy.start.secret_files import become


def command(host: str, environment: Mapping[str, str]) -> list[str]:
    """Return the command to start. Raises KeyError without ETCD_URL."""
    recording = environment.get("STANDIN_RECORDING")
    return [
        sys.executable, "-m", "sluice.devstack.tidb",
        "--etcd", environment["ETCD_URL"],
        "--listen", f"{host}:2379",
        "--control", f"{host}:2380",
        "--sql", f"{host}:4000",
        *(("--recording", recording) if recording else ()),
    ]  # fmt: skip


def main() -> None:
    """Becomes the stand-in."""
    if len(sys.argv) != 2 or "ETCD_URL" not in os.environ:
        sys.exit("usage: ETCD_URL=http://… python -m deploy.start.standin HOST")
    become(command(sys.argv[1], os.environ), os.environ)


if __name__ == "__main__":
    main()
