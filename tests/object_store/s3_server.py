"""A real S3-protocol server for tests, with a proxy in front of it that injects faults.

    def test_x(s3_server):                       # the fixture, see `tests.object_store.fixture`
        relay = RelayLog.open(s3_server.url("relay"))
        # see `tests.object_store.proxy`
        s3_server.inject(Fault("lost", methods="PUT", path="/windows/", times=1))
        …
        s3_server.heal()
        assert s3_server.counted()["PUT"] == 3

`url(folder)` is a relay URL with a folder of the test's own. The fixture puts credentials into this
process's environment, where obstore, and every process that the test starts, finds them;
`environment` has them for a process that gets one of its own, with the endpoint in obstore's own
variables (``AWS_ENDPOINT`` …), so that ``s3://bucket/dir`` without options is understood there.
Spark's workers have the environment of the Spark server: give them the credentials when it is
started. Without the fixture: `with started_s3(folder) as server`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from tests.object_store.proxy import Fault, FaultyProxy
from tests.ports import free_port

BUCKET = "bucket"
REGION = "us-east-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG#bPxRfiCY",
}


class StoreProcess(Protocol):
    """A store as a child process, on a port of this machine, and how one gets at it by way of a
    proxy.
    """

    port: int

    def url(self, path: str, port: int) -> str:
        """A relay URL, by way of the proxy at `port`."""

    def plain_url(self, path: str) -> str:
        """As `url`, without options: for processes with `environment`."""

    def environment(self, port: int) -> Mapping[str, str]:
        """What a process needs to reach it by `plain_url`."""

    pieces: tuple[str, ...]
    """What is in the requests that begin an upload in pieces and bring one each."""
    pieces_joined: str
    """And in the one that joins them."""

    def close(self) -> None: ...


class S3Process:
    """ministack's S3 as a child process, everything in memory, with one bucket."""

    pieces = ("partNumber=1", "partNumber=2", "uploads")
    pieces_joined = "?uploadId="

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        env = os.environ | {
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "SERVICES": "s3,sts",
            "LOG_LEVEL": "WARNING",
            "STATE_DIR": str(folder),
            "S3_DATA_DIR": str(folder),
            "TMPDIR": str(folder),
            "DOCKER_HOST": f"unix://{folder}/none",
        }
        self._log = (folder / "s3.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ministack"], env=env, stdout=self._log, stderr=self._log
        )
        until = time.monotonic() + 120
        while True:
            try:
                request = urllib.request.Request(
                    f"http://127.0.0.1:{self.port}/{BUCKET}", method="PUT"
                )
                urllib.request.urlopen(request, timeout=5).close()
                return
            except OSError:
                assert self._process.poll() is None and time.monotonic() < until, (
                    folder / "s3.log"
                ).read_text()
                time.sleep(0.1)

    def url(self, path: str, port: int) -> str:
        return (
            f"s3://{BUCKET}/{path}?region={REGION}&endpoint_override=127.0.0.1:{port}&scheme=http"
        )

    def plain_url(self, path: str) -> str:
        return f"s3://{BUCKET}/{path}"

    def environment(self, port: int) -> Mapping[str, str]:
        endpoint = {"AWS_ENDPOINT": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true"}
        return CREDENTIALS | endpoint | {"AWS_REGION": REGION}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


class S3Server:
    """A server with a proxy in front of it.

    `folder`: what the URLs begin with, so that tests share a server.
    """

    def __init__(self, process: StoreProcess, folder: str = "") -> None:
        self._process = process
        self._folder = folder
        self.proxy = FaultyProxy(process.port)

    def url(self, folder: str = "relay") -> str:
        """A relay URL, by way of the proxy."""
        return self._process.url(self._path(folder), self.proxy.port)

    def plain_url(self, folder: str = "relay") -> str:
        """As `url`, without options: for processes with `environment`."""
        return self._process.plain_url(self._path(folder))

    def _path(self, folder: str) -> str:
        return f"{self._folder}/{folder}" if self._folder else folder

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs to reach it by `plain_url`."""
        return self._process.environment(self.proxy.port)

    @property
    def pieces(self) -> tuple[str, ...]:
        """See `StoreProcess`."""
        return self._process.pieces

    @property
    def pieces_joined(self) -> str:
        """See `StoreProcess`."""
        return self._process.pieces_joined

    def inject(self, *faults: Fault) -> None:
        """From now on these happen, beside those that happen already."""
        self.proxy.inject(*faults)

    def heal(self) -> None:
        """No more faults; what was held is let go."""
        self.proxy.heal()

    def counted(self) -> Counter[str]:
        """Requests since the last call, by what stores charge for: PUT, GET, HEAD, LIST, DELETE.

        Uploads in parts are PUTs, each part one, and the beginning and the end.
        """
        return self.proxy.counted()

    def close(self) -> None:
        self.proxy.close()


@contextlib.contextmanager
def started_s3(folder: Path) -> Iterator[S3Server]:
    """A server of one's own; `folder` is for its log."""
    process = S3Process(folder)
    try:
        server = S3Server(process)
        try:
            yield server
        finally:
            server.close()
    finally:
        process.close()
