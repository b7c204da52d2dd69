"""Measure loopback between two processes: over a bare socket, and the same by grpcio.

Bytes are sent and answered.

`round_trip_us` is 128 bytes there and back, one at a time, by two threads that block: two
wake-ups, and what the kernel does for a socket. `grpc_*_calls_per_s` are unary calls of 128 bytes,
a given number under way at a time, to a server that gives back what it got; `grpc_stream_mb_per_s`
is a stream of messages of 256 KiB. Both processes share the machine's cores.
"""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import numpy as np

from sluice.bench.limits import Figures, Round

_LOOPBACK = "127.0.0.1"
_CALL = b"x" * 128
_MESSAGE = b"x" * 2**18
_MESSAGES = 64  # of a stream
_CONNECTIONS = 4


@contextmanager
def wire(folder: Path) -> Iterator[Round]:
    """Measure a bare socket and a gRPC server, both in another process.

    Nothing is written to `folder`.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    theirs.close()
    try:
        plain_port, grpc_port = ours.recv()
        # channels of one address would share a connection
        own = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            grpc.insecure_channel(f"{_LOOPBACK}:{grpc_port}", options=own)
            for _ in range(_CONNECTIONS)
        ]
        with socket.create_connection((_LOOPBACK, plain_port)) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            echoes = [channel.unary_unary("/bench/Echo") for channel in channels]
            stream = channels[0].unary_stream("/bench/Stream")

            def take(seconds: float) -> Figures:
                return {
                    "round_trip_us": _round_trip_us(plain, seconds),
                    "grpc_1_calls_per_s": _calls_per_s(echoes, 1, seconds),
                    "grpc_64_calls_per_s": _calls_per_s(echoes, 64, seconds),
                    "grpc_stream_mb_per_s": _stream_mb_per_s(stream, seconds),
                }

            yield take
        for channel in channels:
            channel.close()
    except EOFError:
        raise RuntimeError(
            "the process that answers over loopback died while it started, see its trace above"
        ) from None
    finally:
        server.terminate()
        server.join(10)


def _round_trip_us(plain: socket.socket, seconds: float) -> float:
    waits: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end or not waits:
        plain.sendall(_CALL)
        if len(plain.recv(len(_CALL), socket.MSG_WAITALL)) < len(_CALL):
            raise ConnectionError("the process that answers over loopback hung up")
        waits.append(time.perf_counter() - began)
    return float(np.median(waits)) * 1e6


def _calls_per_s(
    echoes: list[grpc.UnaryUnaryMultiCallable], at_a_time: int, seconds: float
) -> float:
    """Keep `at_a_time` calls under way; each begins the next one when it is answered."""
    answered, under_way = 0, at_a_time
    over, lock = threading.Event(), threading.Lock()
    errors: list[BaseException] = []
    end = time.perf_counter() + seconds

    def call(number: int) -> None:
        echoes[number % len(echoes)].future(_CALL).add_done_callback(
            lambda future: done(number, future)
        )

    def done(number: int, future: grpc.Future) -> None:
        nonlocal answered, under_way
        error = future.exception()
        with lock:
            answered += 1
            if error is not None:
                errors.append(error)
            going_on = error is None and time.perf_counter() < end
            under_way -= not going_on
            if not under_way:
                over.set()
        if going_on:
            call(number)

    began = time.perf_counter()
    for number in range(at_a_time):
        call(number)
    over.wait()
    if errors:
        raise errors[0]
    return answered / (time.perf_counter() - began)


def _stream_mb_per_s(stream: grpc.UnaryStreamMultiCallable, seconds: float) -> float:
    received = 0
    began = time.perf_counter()
    while not received or time.perf_counter() - began < seconds:
        received += sum(len(message) for message in stream(b""))
    return received / (time.perf_counter() - began) / 1e6


def _serve(pipe: Connection) -> None:
    """Send the two ports, and serve until the process is ended.

    This is the other process.
    """
    listener = socket.create_server((_LOOPBACK, 0))
    server = grpc.server(ThreadPoolExecutor(4))
    handlers: dict[str, grpc.RpcMethodHandler] = {
        "Echo": grpc.unary_unary_rpc_method_handler(lambda request, context: request),
        "Stream": grpc.unary_stream_rpc_method_handler(
            lambda request, context: (_MESSAGE for _ in range(_MESSAGES))
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
    port = server.add_insecure_port(f"{_LOOPBACK}:0")
    server.start()
    pipe.send((listener.getsockname()[1], port))
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while message := connection.recv(len(_CALL), socket.MSG_WAITALL):
        connection.sendall(message)
    server.stop(None)
