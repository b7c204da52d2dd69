"""Messages between Airflow's processes and an agent, and signals that come while one is awaited."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from sluice.airflow.messages import JsonLines


@pytest.fixture
def ends() -> Iterator[tuple[JsonLines, int]]:
    """One end of a conversation with itself, and the descriptor that its messages go to."""
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as source, os.fdopen(writing, "w") as target:
        yield JsonLines(source, target), writing


def test_messages_come_one_by_one_however_their_bytes_arrive(ends: tuple[JsonLines, int]) -> None:
    line, writing = ends
    line.send(first="ü" * 9)
    os.write(writing, b'{"second": 2}\n{"third"')
    threading.Timer(0.1, os.write, (writing, b": 3}\n")).start()
    assert [line.receive() for _ in range(3)] == [{"first": "ü" * 9}, {"second": 2}, {"third": 3}]


@pytest.mark.parametrize(("sent", "error"), [(b"[1]\n", ValueError), (b"{no json\n", ValueError)])
def test_what_is_no_message_is_an_error(
    ends: tuple[JsonLines, int], sent: bytes, error: type[Exception]
) -> None:
    line, writing = ends
    os.write(writing, sent)
    with pytest.raises(error):
        line.receive()


def test_half_a_message_is_none(ends: tuple[JsonLines, int]) -> None:
    line, _ = ends
    line._writing.write('{"half')
    line._writing.close()
    with pytest.raises(EOFError, match="gone"):
        line.receive()


@pytest.mark.timeout(60)
def test_a_signal_that_another_thread_gets_is_handled_while_a_message_is_awaited(
    ends: tuple[JsonLines, int],
) -> None:
    line, writing = ends

    def answer(*_: object) -> None:
        os.write(writing, b'{"handled": true}\n')

    def be_signalled() -> None:
        time.sleep(0.2)  # the main thread waits by then; if it doesn't yet, it has even less to do
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, answer)
    try:
        threading.Thread(target=be_signalled).start()
        assert line.receive() == {"handled": True}
    finally:
        signal.signal(signal.SIGUSR1, before)
