"""Lean calls: they give what grpcio gives, or nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from sluice.tidb import grpc_lite as lean
from sluice.tidb.grpc_lite import UnaryConnection, UnaryEndpoint, UseFullGrpc

ECHO, STREAM, FAIL, PATIENT = (
    "/test.Echo/Echo",
    "/test.Echo/Stream",
    "/test.Echo/Fail",
    "/test.Echo/Patient",
)


def _fail(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no")
    raise AssertionError


@pytest.fixture
def server() -> Iterator[str]:
    """A server of grpcio; its address."""
    go_on = threading.Event()

    def patient(request: bytes, context: grpc.ServicerContext) -> bytes:
        go_on.wait(60)
        return request

    handlers: dict[str, Any] = {
        "Echo": grpc.unary_unary_rpc_method_handler(lambda request, context: request[::-1]),
        "Stream": grpc.stream_stream_rpc_method_handler(
            lambda requests, context: (each * 2 for each in requests)
        ),
        "Fail": grpc.unary_unary_rpc_method_handler(_fail),
        "Patient": grpc.unary_unary_rpc_method_handler(patient),
    }
    pool = ThreadPoolExecutor(8)
    serving = grpc.server(pool)
    serving.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = serving.add_insecure_port("127.0.0.1:0")
    serving.start()
    yield f"127.0.0.1:{port}"
    go_on.set()
    serving.stop(0)
    pool.shutdown()


def test_calls_are_answered_also_more_than_a_connections_window_holds(server: str) -> None:
    with contextlib.closing(UnaryConnection(server, 30.0)) as connection:
        for size in (0, 1, 127, 9_000, *[12_000] * 100):
            message = bytes(range(256)) * 60
            assert connection.finish(connection.begin(ECHO, message[:size])) == message[:size][::-1]


def test_calls_side_by_side_and_a_stream_between_them(server: str) -> None:
    with contextlib.closing(UnaryConnection(server, 30.0)) as connection:
        stream = connection.begin(STREAM, b"first", more=True)
        one, other = connection.begin(ECHO, b"one"), connection.begin(ECHO, b"other")
        assert connection.finish(other) == b"rehto"
        for word in (b"a", b"b"):
            connection.send(stream, word)
        assert connection.finish(one) == b"eno"
        assert [connection.receive(stream) for _ in range(3)] == [b"firstfirst", b"aa", b"bb"]


@pytest.mark.parametrize("path", [FAIL, "/test.Echo/Unknown"])
def test_a_call_that_fails_gives_nothing(server: str, path: str) -> None:
    place = UnaryEndpoint(server, 30.0)
    assert place.call(ECHO, b"ab") == b"ba"
    assert place.call(path, b"") is None
    assert place.connection() is None  # grpcio's for a while


def test_a_silent_server_and_one_that_hangs_up_give_nothing(server: str) -> None:
    place = UnaryEndpoint(server, 0.3)
    assert place.call(PATIENT, b"") is None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closing = UnaryConnection(f"127.0.0.1:{listener.getsockname()[1]}", 30.0)
        accepted, _ = listener.accept()
        accepted.close()
        with pytest.raises(UseFullGrpc):
            closing.finish(closing.begin(ECHO, b"ab"))
    assert UnaryEndpoint(f"127.0.0.1:{_nobody()}").call(ECHO, b"") is None


def test_an_answer_in_one_piece_is_taken_only_if_it_is_not_compressed() -> None:
    ok = bytes.fromhex("40889acac8b21234da8f0130")
    for flag, expected in ((0, b"ab"), (1, None)):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            place = UnaryEndpoint(f"127.0.0.1:{listener.getsockname()[1]}", 30.0)
            assert place.connection() is not None
            accepted, _ = listener.accept()
            frames = (
                (4, 0, b""),
                (1, 4, b"\x88"),
                (0, 0, bytes((flag, 0, 0, 0, 2)) + b"ab"),
                (1, 5, ok),
            )
            answer = b""
            for kind, flags, content in frames:
                answer += len(content).to_bytes(3, "big") + bytes((kind, flags))
                answer += (1 if kind < 2 else 0).to_bytes(4, "big") + content
            accepted.sendall(answer)
            assert place.call(ECHO, b"") == expected
            accepted.close()


def _nobody() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_who_closes_a_place_in_another_thread_ends_what_waits(server: str) -> None:
    place = UnaryEndpoint(server, 60.0)
    connection = place.connection()
    assert connection is not None
    stream = connection.begin(PATIENT, b"")
    seen: list[BaseException] = []

    def wait() -> None:
        try:
            connection.finish(stream)
        except UseFullGrpc as error:
            seen.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    place.close()
    waiting.join(30)
    assert seen


def test_after_a_failure_it_is_tried_again_later(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = UnaryEndpoint(server, 30.0)
    place.failed()
    assert place.call(ECHO, b"ab") is None
    monkeypatch.setattr(lean, "_RETRY_INTERVAL_S", 0.0)
    place.failed()
    assert place.call(ECHO, b"ab") == b"ba"


def test_an_address_with_tls_is_left_to_grpcio(server: str) -> None:
    assert UnaryEndpoint(f"https://{server}").call(ECHO, b"ab") is None


@pytest.mark.parametrize(
    ("block", "is_ok"),
    [
        ("40889acac8b21234da8f013040899acac8b5254207317f00", True),  # as grpc-go's servers say it
        ("20" + "40889acac8b21234da8f0130", True),  # behind the table's new size
        ("000b677270632d7374617475730130", True),  # plain
        ("100b677270632d737461747573" + "8107", True),  # the 0 by Huffman's code
        # status 5
        ("885f8b1d75d0620d263d4c4d656440889acac8b21234da8f013540899acac8b5254207317f00", False),
        ("000b677270632d737461747573023130", False),  # 10
        ("885f8b1d75d0620d263d4c4d6564", False),  # no status
        ("be", False),  # of a table that isn't kept
        ("000b677270632d7374", False),  # broken off
        ("", False),
    ],
)
def test_only_an_ok_is_taken_for_one(block: str, is_ok: bool) -> None:
    assert lean._says_ok(bytes.fromhex(block)) is is_ok
