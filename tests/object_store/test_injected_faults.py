"""The tests' S3 server keeps conditions, and each of its faults happens as documented."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from tests.object_store.proxy import Fault
from tests.object_store.s3_server import S3Server


def ask(
    server: S3Server, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    folder = urlsplit(server.plain_url("")).path
    url = f"http://127.0.0.1:{server.proxy.port}/bucket{folder}{path}"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def listed(server: S3Server, folder: str = "") -> bytes:
    prefix = f"{urlsplit(server.plain_url('')).path.lstrip('/')}{folder}"
    url = f"http://127.0.0.1:{server.proxy.port}/bucket?list-type=2&prefix={prefix}&delimiter=/"
    with urllib.request.urlopen(url, timeout=60) as answer:
        found: bytes = answer.read()
        return found


def test_conditions_are_kept(s3_server: S3Server) -> None:
    assert ask(s3_server, "PUT", "a", b"one", If_None_Match="*")[0] == 200
    assert ask(s3_server, "PUT", "a", b"two", If_None_Match="*")[0] == 412
    assert ask(s3_server, "PUT", "a", b"two", If_Match='"0"')[0] == 412
    assert ask(s3_server, "GET", "a")[1] == b"one"
    assert s3_server.counted() == {"PUT": 3, "GET": 1}


@pytest.mark.parametrize(("kind", "status"), [("busy", 503), ("failed", 500)])
def test_a_request_that_is_refused_has_not_reached_the_server(
    s3_server: S3Server, kind: str, status: int
) -> None:
    s3_server.inject(Fault(kind, "PUT", times=1))
    assert ask(s3_server, "PUT", "a", b"one")[0] == status
    assert ask(s3_server, "GET", "a")[0] == 404


def test_a_request_whose_answer_fails_has_reached_the_server(s3_server: S3Server) -> None:
    s3_server.inject(
        Fault("failed after", "PUT", times=1), Fault("lost", "PUT", path="/lost", times=1)
    )
    assert ask(s3_server, "PUT", "a", b"one")[0] == 500
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(s3_server, "PUT", "lost", b"two")
    assert [ask(s3_server, "GET", name)[1] for name in ("a", "lost")] == [b"one", b"two"]


def test_a_connection_that_is_reset_has_brought_nothing(s3_server: S3Server) -> None:
    s3_server.inject(Fault("reset", "PUT", times=1))
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(s3_server, "PUT", "a", b"one")
    assert ask(s3_server, "GET", "a")[0] == 404


def test_bodies_are_cut_and_flipped(s3_server: S3Server) -> None:
    ask(s3_server, "PUT", "a", b"12345678")
    s3_server.inject(Fault("flipped", "GET", times=1))
    assert ask(s3_server, "GET", "a")[1] == b"12344678"
    s3_server.inject(Fault("cut", "GET", times=1))
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(s3_server, "GET", "a")
    assert caught.value.partial == b"1234"


def test_lists_that_lag_know_nothing_of_what_is_new_and_know_what_is_gone(
    s3_server: S3Server,
) -> None:
    ask(s3_server, "PUT", "was", b"1")
    ask(s3_server, "PUT", "new/a", b"1")
    assert b"was" in listed(s3_server) and b"new/" in listed(s3_server)
    s3_server.inject(Fault("lag", seconds=600))
    assert b"was" not in listed(s3_server) and b"new/" not in listed(s3_server)
    ask(s3_server, "DELETE", "was")
    assert b"was" in listed(s3_server)
    s3_server.heal()
    assert b"was" not in listed(s3_server) and b"new/" in listed(s3_server)
