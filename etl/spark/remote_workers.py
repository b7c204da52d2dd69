"""Workers that run elsewhere: what they must be sent, and what they don't see."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.etl.settings import SettingsError, Spark
from sluice.etl.spark.shipping import build_zip, fingerprint
from sluice.etl.spark.version_check import VersionChecked
from sluice.relay.storage.credentials import StoreCredentials, known_credentials, register_provider
from sluice.relay.url import local_folder

_ENVIRONMENT = "environment"
"""The folder, in a worker's own, that a packed environment becomes."""
_HERE = "here"


@dataclass(frozen=True, slots=True)
class WorkerRequirements:
    """The requirements of workers behind a Spark Connect server, for a client on this machine."""

    server: Spark
    master: str
    """The server's master, as it reports it: ``local[*]``, ``spark://host:7077``, ``yarn``, etc."""

    @property
    def is_local(self) -> bool:
        """Return whether the workers are processes of this machine, with this process's files."""
        is_local = self.master == "local" or self.master.startswith("local[")
        return is_local and self.server.is_on_this_machine

    @property
    def sends_package(self) -> bool:
        """Return whether Sluice is sent to them."""
        return self.server.package == "always" or (
            self.server.package == "auto" and not self.is_local
        )

    @property
    def mark(self) -> str:
        """Return the mark of a session that is ready for this client; others have another mark."""
        if self.is_local and not self.sends_package and not self.server.environment:
            return _HERE
        words = [fingerprint(), "sent" if self.sends_package else "there"]
        if self.server.environment:
            words.append(_stamp(self.server.environment))
        return " ".join(words)

    @property
    def confs(self) -> dict[str, str]:
        """Return settings of Spark's that a session needs."""
        python = self.server.python
        if not python and self.server.environment:
            python = f"{_ENVIRONMENT}/bin/python"
        return {"spark.sql.execution.pyspark.python": python} if python else {}

    def check_places(self, urls: Sequence[str]) -> None:
        """Check that the workers see all folders among `urls`. Raises SettingsError."""
        if self.is_local or self.server.shared_files:
            return
        for url in urls:
            if (folder := local_folder(url)) is not None:
                raise SettingsError(
                    f"{url}: {folder} is a folder of this machine, and Spark's workers run"
                    f" elsewhere (the master of {self.server.remote} is"
                    f" {self.master or 'unknown'}): what they write would be missing here. Use an"
                    " object store (s3://, gs://, az://), or, if every worker mounts this very"
                    " folder at the same path, set [spark] shared-files = true"
                )

    def send(self, spark: Any) -> None:
        """Send what the workers need, once a session. Raises SettingsError, Spark's errors."""
        if self.server.environment:
            _add(spark, f"{_environment(self.server.environment)}#{_ENVIRONMENT}", archive=True)
        if not self.sends_package:
            return
        with tempfile.TemporaryDirectory(prefix="sluice-package-") as folder:
            path = Path(folder, f"sluice-{fingerprint()}.zip")
            path.write_bytes(build_zip())
            try:
                _add(spark, str(path), pyfile=True)
            finally:
                # pyspark would have this process import from it, too
                with contextlib.suppress(ValueError):
                    sys.path.remove(str(path))

    def note(self, spark: Any) -> None:
        """Record for `wrap_for_workers` how a session's workers get Sluice."""
        spark.sluice_workers_are_here = self.mark == _HERE


def wrap_for_workers(spark: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a job's function for Spark, in a session of `sluice.etl.spark.session`.

    Workers that run elsewhere first check their versions.
    """
    function = with_credentials(function)
    return function if spark.sluice_workers_are_here else VersionChecked.wrap(function)


def _add(spark: Any, path: str, **kind: bool) -> None:
    spark.addArtifacts(path, **kind)


def _environment(path: str) -> Path:
    if not Path(path).is_file():
        raise SettingsError(f"[spark] environment {path}: there is no such file")
    return Path(path).absolute()


def _stamp(path: str) -> str:
    found = _environment(path).stat()
    return f"{found.st_size}-{found.st_mtime_ns}"


@dataclass(frozen=True, slots=True)
class _WithCredentials:
    """A function that opens stores, and what it needs for that."""

    function: Callable[[Iterator[Any]], Iterator[Any]]
    credentials: dict[str, StoreCredentials]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for url, found in self.credentials.items():
            register_provider(url, _StaticCredentials(found))
        yield from self.function(batches)


@dataclass(frozen=True, slots=True)
class _StaticCredentials:
    credentials: StoreCredentials

    def __call__(self) -> StoreCredentials:
        return self.credentials


def with_credentials(
    function: Callable[[Iterator[Any]], Iterator[Any]],
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Wrap a function of record batches for Spark's workers with this process's credentials.

    They are those that workers can't have by themselves. So they are on the Spark Connect channel,
    with what TLS that has, and in the workers' memory. No setting of Spark's, no plan, no page and
    no event log shows them. Without any, the function stays as it is. Raises what the credentials'
    provider raises.
    """
    found = known_credentials()
    return _WithCredentials(function, found) if found else function
