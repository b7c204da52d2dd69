"""Azure Blob Storage as Azurite, Microsoft's emulator, speaks it: in the place of the S3 server of
the tests.

    npm install --prefix /tmp/azurite azurite
    export SLUICE_TEST_AZURITE=/tmp/azurite/node_modules/.bin/azurite-blob
    .venv/bin/python -m pytest -n0 tests/relay/test_…

Then the fixture `s3_server` is this one. Faults happen as before, but for lists that lag.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path

VARIABLE = "SLUICE_TEST_AZURITE"
"""The environment's: where azurite-blob is."""
_CONTAINER = "bucket"
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The same in each Azurite, as its documentation says."""
_VERSION = "2021-08-06"


class AzureProcess:
    """Azurite as a child process, everything in memory, with one container."""

    pieces = ("comp=block&",)
    pieces_joined = "comp=blocklist"

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self._log = (folder / "azurite.log").open("wb")
        self._process = subprocess.Popen(
            [
                "node",
                os.environ[VARIABLE],
                "--inMemoryPersistence",
                "--disableTelemetry",
                "--skipApiVersionCheck",
                "--silent",
                "--blobHost",
                "127.0.0.1",
                "--blobPort",
                str(port),
            ],
            cwd=folder,
            stdout=self._log,
            stderr=self._log,
        )
        until = time.monotonic() + 120
        while True:
            try:
                self._make_container()
                return
            except OSError as error:
                assert not isinstance(error, urllib.error.HTTPError), error.read()
                assert self._process.poll() is None and time.monotonic() < until, (
                    folder / "azurite.log"
                ).read_text()
                time.sleep(0.1)

    def _make_container(self) -> None:
        """Signed as Azure's "Authorize with Shared Key" says."""
        date = formatdate(usegmt=True)
        headers = f"x-ms-date:{date}\nx-ms-version:{_VERSION}"
        asked = (
            "PUT" + "\n" * 12 + f"{headers}\n/{_ACCOUNT}/{_ACCOUNT}/{_CONTAINER}\nrestype:container"
        )
        signature = base64.b64encode(
            hmac.digest(base64.b64decode(_KEY), asked.encode(), hashlib.sha256)
        ).decode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{_ACCOUNT}/{_CONTAINER}?restype=container",
            method="PUT",
            headers={
                "x-ms-date": date,
                "x-ms-version": _VERSION,
                "Authorization": f"SharedKey {_ACCOUNT}:{signature}",
                "Content-Length": "0",
            },
        )
        urllib.request.urlopen(request, timeout=5).close()

    def url(self, path: str, port: int) -> str:
        """Options there are none: see `environment`."""
        return self.plain_url(path)

    def plain_url(self, path: str) -> str:
        return f"az://{_CONTAINER}/{path}"

    def environment(self, port: int) -> Mapping[str, str]:
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{_ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
