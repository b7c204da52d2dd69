"""Run Apicurio's schema registry, which has Confluent's API, for tests that need a real one.

The archive comes from Maven Central to .venv/kafka, once, and must have its SHA-256. Version 3.0 is
the last that runs on Java 17. It keeps all in memory. `tests.kafka_broker` starts it beside the
broker; tests find it in SLUICE_TEST_REGISTRY.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

_VERSION = "3.0.9"
_ARCHIVE = f"apicurio-registry-app-{_VERSION}-all.tar.gz"
ARCHIVE_PATH = f"io/apicurio/apicurio-registry-app/{_VERSION}/{_ARCHIVE}"
ARCHIVE_SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
_API = "/apis/ccompat/v7"
_START_TIMEOUT_S = 120
_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def unpacked(folder: Path, fetch: Callable[[Path, str, str], None]) -> Path:
    """Return the folder with the registry's jars; `fetch` is asked for the archive once."""
    found = folder / f"registry-{_VERSION}"
    if not found.exists():
        fetch(folder, ARCHIVE_SHA256, ARCHIVE_PATH)
        temporary = found.with_suffix(".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.unpack_archive(folder / _ARCHIVE, temporary)
        temporary.rename(found)
        (folder / _ARCHIVE).unlink()
    return found


@contextlib.contextmanager
def running_schema_registry(jars: Path, port: int) -> Iterator[str]:
    """Start the registry, yield its URL, and end it."""
    url = f"http://127.0.0.1:{port}{_API}"
    places = f"{jars}/apicurio-registry-app-{_VERSION}-runner.jar:{jars}/lib/*"
    listen = ("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}")
    command = ["java", *_OPTIONS, *listen, "-cp", places, "io.quarkus.runner.GeneratedMain"]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            if not _is_up(server, url):
                log.seek(0)
                raise RuntimeError(f"the registry did not start:\n{log.read()[-2000:].decode()}")
            yield url
        finally:
            server.kill()
            server.wait()


def _is_up(server: subprocess.Popen[bytes], url: str) -> bool:
    """Return whether the registry has come up, with Confluent's default, BACKWARD."""
    level = urllib.request.Request(
        f"{url}/config",
        b'{"compatibility": "BACKWARD"}',
        {"Content-Type": "application/json"},
        method="PUT",
    )
    deadline = time.monotonic() + _START_TIMEOUT_S
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(level, timeout=10) as answer:
            return bool(answer.status == 200)
        time.sleep(0.2)
    return False
