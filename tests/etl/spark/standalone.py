"""A cluster whose workers see neither the driver's files nor Sluice: each is in a mount namespace
of its own, in which folders of the driver are empty.

Where the environment gives nobody one, workers are told apart by their folders alone (`is_apart` is
False then).
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from sluice.devstack.launch.standalone import StandaloneCluster
from sluice.etl.settings import Relay, Settings, Spark, Upstream
from tests.etl.mariadb_fixture import MariaDBServer

ROOT = Path(__file__).resolve().parents[3]
_NAMESPACES = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])


def namespace() -> list[str] | None:
    """What gives a command its own mounts; None where nobody may."""
    for words in _NAMESPACES:
        tried = subprocess.run(
            [*words, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True
        )
        if tried.returncode == 0:
            return words
    return None


class ClusterApart(StandaloneCluster):
    """`hidden`: folders that no worker sees."""

    def __init__(self, home: Path, hidden: Sequence[Path], environment: Mapping[str, str]) -> None:
        super().__init__(home, environment)
        self._hidden = [*hidden, ROOT / "sluice"]
        self._namespace = namespace()

    @property
    def is_apart(self) -> bool:
        """Whether workers have mounts of their own."""
        return self._namespace is not None

    def worker_argv(self, argv: Sequence[str], folder: Path) -> tuple[str, ...]:
        """With its mounts, and its folder in them."""
        if self._namespace is None:
            return tuple(argv)
        steps = [f"mount -t tmpfs none {shlex.quote(str(path))}" for path in self._hidden]
        steps += [
            f"mkdir -p {shlex.quote(str(folder))}",
            f"cd {shlex.quote(str(folder))}",
            f"exec {shlex.join(argv)}",
        ]
        return (*self._namespace, "/bin/bash", "-c", " && ".join(steps))


def settings_of(cluster: ClusterApart, url: str, mariadb: MariaDBServer) -> Settings:
    """Of a pipeline on that cluster, with its relay log at `url`."""
    return Settings(Upstream("unused"), Relay(url), mariadb.downstream, spark=Spark(cluster.remote))
