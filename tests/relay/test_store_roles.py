"""Credentials of an object store from the machine's role: where they come from, that new ones
count, and that none of them is said anywhere.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sluice.relay import RelayLog
from sluice.relay.storage._object_store import open_object_storage
from sluice.relay.url import parse_url
from tests.object_store.proxy import Fault
from tests.object_store.s3_server import CREDENTIALS, S3Server

SECRET = "hush/hush+hush"
TOKEN = "session-hush"
_ROLE = "/latest/meta-data/iam/security-credentials/"


class Metadata:
    """What a machine, or a container's agent, is asked for credentials.

    They last a minute, so that new ones are asked for all the time.
    """

    def __init__(self) -> None:
        self.key = "AKIAFIRST"
        self.asked: list[str] = []
        metadata = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self._answer(TOKEN if self.path == "/latest/api/token" else "")

            def do_GET(self) -> None:
                metadata.asked.append(self.path)
                self._answer("pump-role" if self.path == _ROLE else metadata._credentials())

            def _answer(self, text: str) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def _credentials(self) -> str:
        until = (datetime.now(UTC) + timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        return json.dumps(
            {
                "Code": "Success",
                "AccessKeyId": self.key,
                "SecretAccessKey": SECRET,
                "Token": TOKEN,
                "Expiration": until,
            }
        )


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    found = Metadata()
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    yield found
    found.server.shutdown()
    found.server.server_close()


def _of_the_machine(metadata: Metadata, patch: pytest.MonkeyPatch, folder: Path) -> str:
    patch.setenv("AWS_METADATA_ENDPOINT", metadata.url)
    return f"{_ROLE}pump-role"


def _of_a_container(metadata: Metadata, patch: pytest.MonkeyPatch, folder: Path) -> str:
    (folder / "token").write_text(TOKEN)
    patch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{metadata.url}/v1/credentials")
    patch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(folder / "token"))
    return "/v1/credentials"


@pytest.mark.parametrize("role", [_of_the_machine, _of_a_container])
def test_a_role_s_credentials_are_used_new_ones_count_and_none_is_said(
    s3_server: S3Server,
    metadata: Metadata,
    role: object,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    path = role(metadata, monkeypatch, tmp_path)  # type: ignore[operator]
    relay = RelayLog(open_object_storage(parse_url(s3_server.url()), s3_server.url()))
    claim = relay.claim("land")
    assert s3_server.proxy.keys_seen == ["AKIAFIRST"] and path in metadata.asked
    metadata.key = "AKIASECOND"
    until = time.monotonic() + 60
    while s3_server.proxy.keys_seen == ["AKIAFIRST"]:
        assert time.monotonic() < until
        claim.check()
    assert s3_server.proxy.keys_seen == ["AKIAFIRST", "AKIASECOND"]
    s3_server.inject(Fault("denied", "GET"))
    with pytest.raises(PermissionError, match="403") as caught:
        claim.check()
    said = f"{caught.value!r} {caplog.text} {vars(relay.storage)!r}"
    assert all(secret not in said for secret in (SECRET, TOKEN, "AKIA"))
