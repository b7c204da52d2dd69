"""A standing worker serves call after call.

Where there is none, or it dies, calls are jobs of their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

from sluice.etl.settings import Spark
from sluice.etl.spark import persistent_worker as standing
from sluice.etl.spark import persistent_worker_task, session
from sluice.etl.spark._line import ALIVE, BATCH, CALL, END, FAILED, WorkerConnection
from sluice.etl.spark._line_tls import CallerCertificate, TlsSocket
from sluice.etl.spark.error_translation import ErrorTranslator
from sluice.etl.spark.errors import SlowWorkerError, SparkError, WorkerError
from sluice.etl.spark.persistent_worker_task import ServeCalls
from sluice.etl.spark.remote_function import RemoteFunction
from sluice.etl.spark.worker_tuning import TEXTS

KEY = b"k" * 32


def work():
    """Maps texts; defined in a function, so that it travels to the workers by value."""

    def answer(text: str) -> str:
        import os

        from sluice.errors import SluiceError
        from sluice.etl.spark.errors import report_to_client

        with report_to_client():
            if text == "fail":
                raise SluiceError("refused", transient=False, hint="none")
        return f"{text} from {os.getpid()}"

    def run(batches):
        import pyarrow

        for batch in batches:
            for text in batch.column(0).to_pylist():
                yield pyarrow.record_batch([pyarrow.array([answer(text)])], names=["text"])

    return run


@pytest.fixture(scope="module")
def made(spark_remote: str) -> Iterator[Callable[..., RemoteFunction]]:
    """Makes functions that nobody has called yet."""
    server = Spark(spark_remote)
    spark = session.attach(server, "standing")
    with pytest.MonkeyPatch.context() as patched:
        # the first worker of a busy machine takes its time
        patched.setattr(standing, "_START_TIMEOUT_S", 200.0)
        patched.setattr(standing, "_MAX_LIFETIME_S", 2_000.0)
        patched.setattr(standing, "_SHUTDOWN_TIMEOUT_S", 200.0)
        yield lambda **changes: RemoteFunction(
            (spark, replace(server, **changes)), work(), (TEXTS, TEXTS), ErrorTranslator()
        )
    session.close(spark)


@pytest.fixture(scope="module")
def function(made: Callable[..., RemoteFunction]) -> Iterator[RemoteFunction]:
    found = made()
    yield found
    found.release()


def ask(function: RemoteFunction, *texts: str, alone: bool = True) -> list[tuple[str, int]]:
    """What was answered, and by which process."""
    batches = function(pa.table({"text": list(texts)}), 60, alone=alone)
    found = [text.rpartition(" from ") for batch in batches for text in batch.column(0).to_pylist()]
    return sorted((text, int(pid)) for text, _, pid in found)


def test_small_calls_go_to_one_worker_and_its_errors_come_back(function: RemoteFunction) -> None:
    first, second = ask(function, "a", "b")
    assert (first[0], second[0]) == ("a", "b")
    with pytest.raises(WorkerError, match="refused") as caught:
        ask(function, "fail")
    assert not caught.value.transient
    assert ask(function, "c") == [("c", first[1])]
    assert first[1] == second[1]


def test_a_call_that_is_broken_off_leaves_nothing_for_the_next(function: RemoteFunction) -> None:
    with contextlib.closing(function(pa.table({"text": ["a", "b"]}), 60, alone=True)) as answers:
        next(answers)
    assert [text for text, _ in ask(function, "c")] == ["c"]


def test_a_worker_that_is_killed_is_an_error_that_passes(function: RemoteFunction) -> None:
    [(_, pid)] = ask(function, "a")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SparkError, match="gone") as caught:
        ask(function, "b")
    assert caught.value.transient
    assert [text for text, _ in ask(function, "c")] == ["c"]


def test_the_next_worker_begins_when_the_one_before_has_given_its_process_back(
    function: RemoteFunction,
) -> None:
    ask(function, "a")
    [before] = function._pool._one._jobs
    function._pool._one.release()
    ask(function, "b")
    [after] = function._pool._one._jobs
    assert before.is_over and after is not before


def test_who_can_do_without_a_worker_does_not_wait_for_the_successor_of_an_old_one(
    function: RemoteFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(_, pid)] = ask(function, "a")
    with monkeypatch.context() as patched:
        patched.setattr(standing, "_MAX_LIFETIME_S", 0.0)
        with pytest.raises(standing.NoFreeCore):
            list(function(pa.table({"text": ["b"]}), 60, alone=True, core_timeout_s=60))
    deadline = time.monotonic() + 60
    came: list[pa.RecordBatch] = []
    while not came and time.monotonic() < deadline:
        with contextlib.suppress(standing.NoFreeCore):
            came = list(function(pa.table({"text": ["c"]}), 60, alone=True, core_timeout_s=60))
    assert came[0].column(0).to_pylist() == [f"c from {pid}"], "its process is given to the next"


def test_a_successor_that_is_released_before_it_came_is_followed_by_another(
    function: RemoteFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(function, "a")
    worker = function._pool._one
    deadline = time.monotonic() + 60
    with monkeypatch.context() as patched:
        patched.setattr(standing, "_MAX_LIFETIME_S", 0.0)
        while worker._starting is None and time.monotonic() < deadline:
            with contextlib.suppress(standing.NoFreeCore):
                list(function(pa.table({"text": ["b"]}), 60, alone=True, core_timeout_s=60))
    worker.release()
    came: list[pa.RecordBatch] = []
    while not came and time.monotonic() < deadline:
        with contextlib.suppress(standing.NoFreeCore):
            came = list(function(pa.table({"text": ["c"]}), 60, alone=True, core_timeout_s=60))
    assert came[0].column(0).to_pylist()[0].startswith("c from ")


def test_large_calls_at_once_go_to_several_workers_and_give_the_one_up(
    function: RemoteFunction,
) -> None:
    ask(function, "a")
    with ThreadPoolExecutor(2) as threads:
        found = list(
            threads.map(lambda texts: ask(function, *texts, alone=False), (("b", "c"), ("d", "e")))
        )
    assert [[text for text, _ in each] for each in found] == [["b", "c"], ["d", "e"]]
    assert function._pool._one._line is None
    with pytest.raises(WorkerError, match="refused"):
        ask(function, "f", "fail", alone=False)


@pytest.mark.parametrize("alone", [True, False])
def test_where_no_worker_can_come_back_calls_are_jobs(
    made: Callable[..., RemoteFunction], monkeypatch, caplog, *, alone: bool
) -> None:
    function = made()
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = gone.getsockname()[1]
    monkeypatch.setattr(
        standing, "ServeCalls", lambda *args: ServeCalls(*args[:4], closed, args[5])
    )
    for text in ("a", "b"):
        assert [found for found, _ in ask(function, text, alone=alone)] == [text]
    logged = [record for record in caplog.records if "no persistent Spark worker" in record.message]
    assert len(logged) == 1
    assert "Connection refused" in logged[0].message


def serving(function, key: bytes) -> tuple[WorkerConnection, threading.Thread]:
    """The caller's end of a line to a worker, which is a thread here."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        attend = ServeCalls(function, TEXTS, TEXTS, "127.0.0.1", server.getsockname()[1], key)
        thread = threading.Thread(target=lambda: list(attend(iter(()))), daemon=True)
        thread.start()
        return WorkerConnection(server.accept()[0], 60), thread


def test_a_worker_serves_nobody_who_does_not_know_its_key() -> None:
    line, thread = serving(None, KEY)
    with contextlib.closing(line), pytest.raises(ConnectionError):
        line.prove(b"x" * 32, b"caller", b"worker")
    thread.join(60)
    assert not thread.is_alive()


def test_a_caller_meets_nobody_who_does_not_know_its_key() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(bytes(64))
        assert standing._authenticate(ours, KEY, None) is None


def test_a_full_disk_under_a_worker_is_told_as_what_it_is() -> None:
    def full(batches):
        raise OSError(28, "No space left on device", "/relay/part")
        yield from batches

    line, thread = serving(full, KEY)
    line.prove(KEY, b"caller", b"worker")
    batch = pa.record_batch([pa.array(["a"])], schema=TEXTS)
    for _ in range(2):  # it stands by all the same
        line.send(CALL, memoryview(batch.serialize()))
        kind, text = line.receive()
        assert kind == FAILED and b"No space left on device: '/relay/part'" in text
    line.close()
    thread.join(60)
    assert not thread.is_alive()


def test_a_worker_ends_when_its_caller_is_gone() -> None:
    line, thread = serving(lambda batches: batches, KEY)
    line.prove(KEY, b"caller", b"worker")
    line.close()
    thread.join(60)
    assert not thread.is_alive()


def test_a_worker_that_takes_long_says_that_it_is_at_work(monkeypatch) -> None:
    monkeypatch.setattr(persistent_worker_task, "_HEARTBEAT_INTERVAL_S", 0.01)
    go_on = threading.Event()

    def slow(batches):
        go_on.wait(600)
        yield from batches

    line, thread = serving(slow, KEY)
    line.prove(KEY, b"caller", b"worker")
    batch = pa.record_batch([pa.array(["a"])], schema=TEXTS)
    line.send(CALL, memoryview(batch.serialize()))
    assert [line.receive()[0] for _ in range(3)] == [ALIVE] * 3
    go_on.set()
    assert standing._next_message(line, 600)[0] == BATCH
    line.close()
    thread.join(60)
    assert not thread.is_alive()


def test_a_worker_that_is_at_work_for_ever_is_given_up() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        WorkerConnection(theirs, 60).send(ALIVE)
        with pytest.raises(TimeoutError, match="returned nothing"):
            standing._next_message(WorkerConnection(ours, 60), 0.0)


def test_who_waits_for_a_worker_that_is_let_go_waits_no_longer() -> None:
    ours, theirs = socket.socketpair()
    worker = standing.PersistentWorker(None, Spark(), work(), (TEXTS, TEXTS))
    worker._line = WorkerConnection(ours, 2_000)
    with theirs:
        threading.Timer(0.1, worker.release).start()
        with pytest.raises(SparkError, match="gone"):
            list(worker.call(pa.table({"text": ["a"]}), 2_000))


def test_a_worker_that_stands_still_is_told_from_one_that_is_gone_and_its_job_is_cancelled(
    monkeypatch,
) -> None:
    monkeypatch.setattr(standing, "_HEARTBEAT_TIMEOUT_S", 0.01)
    ours, theirs = socket.socketpair()
    worker = standing.PersistentWorker(None, Spark(), work(), (TEXTS, TEXTS))
    worker._line = WorkerConnection(ours, 2_000)
    worker._came = float("inf")
    cancelled: list[bool] = []
    worker._jobs = [SimpleNamespace(cancel=lambda: cancelled.append(True))]  # type: ignore[list-item]
    with theirs:
        assert worker.is_ready()
        with pytest.raises(SlowWorkerError, match="timed out") as caught:
            list(worker.call(pa.table({"text": ["a"]}), 2_000))
    assert caught.value.transient
    assert cancelled


@pytest.mark.parametrize("tls", [False, True])
def test_what_goes_to_spark_by_tls_does_not_come_back_in_the_clear(*, tls: bool) -> None:
    certificate = CallerCertificate() if tls else None
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as before:
        before.bind(("127.0.0.1", 0))
        before.listen()
        attend = ServeCalls(
            lambda batches: batches, TEXTS, TEXTS, *before.getsockname(), KEY, _pem(certificate)
        )
        worker = threading.Thread(target=lambda: list(attend(iter(()))), daemon=True)
        worker.start()
        theirs = before.accept()[0]
        ours = socket.create_connection(server.getsockname())
        threads = [
            threading.Thread(target=_pass_on, args=pair, daemon=True)
            for pair in ((theirs, ours, seen), (ours, theirs, seen))
        ]
        for thread in threads:
            thread.start()
        line = standing._authenticate(server.accept()[0], KEY, certificate)
    assert line is not None
    batch = pa.record_batch([pa.array(["a row of the upstream"])], schema=TEXTS)
    line.send(CALL, memoryview(batch.serialize()))
    assert line.receive()[0] == BATCH
    line.close()
    for thread in [worker, *threads]:
        thread.join(60)
        assert not thread.is_alive()
    assert (b"a row of the upstream" in seen) == (not tls)


def _pem(certificate: CallerCertificate | None) -> str:
    return certificate.pem if certificate is not None else ""


def _pass_on(source: socket.socket, sink: socket.socket, seen: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            seen += data
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


def test_a_worker_serves_nobody_but_the_owner_of_the_certificate_it_has() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        attend = ServeCalls(work(), TEXTS, TEXTS, *address, KEY, CallerCertificate().pem)
        failed: list[str] = []

        def run() -> None:
            try:
                list(attend(iter(())))
            except Exception as error:
                failed.append(str(error))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert standing._authenticate(server.accept()[0], KEY, CallerCertificate()) is None
        thread.join(60)
    assert "CERTIFICATE_VERIFY_FAILED" in failed[0]


def test_heartbeats_and_large_answers_by_tls_from_two_threads_come_whole(monkeypatch) -> None:
    monkeypatch.setattr(persistent_worker_task, "_HEARTBEAT_INTERVAL_S", 0.0001)
    certificate, texts = CallerCertificate(), ["a" * 900_000, "b", "c" * 70_000]

    def answer(batches):
        for batch in batches:
            for text in batch.column(0).to_pylist():
                yield pa.record_batch([pa.array([text])], schema=TEXTS)

    with socket.create_server(("127.0.0.1", 0)) as server:
        attend = ServeCalls(answer, TEXTS, TEXTS, *server.getsockname(), KEY, certificate.pem)
        thread = threading.Thread(target=lambda: list(attend(iter(()))), daemon=True)
        thread.start()
        line = standing._authenticate(server.accept()[0], KEY, certificate)
    assert line is not None
    line.set_timeout(600)
    call = pa.record_batch([pa.array(texts)], schema=TEXTS).serialize()
    for _ in range(10):
        line.send(CALL, memoryview(call))
        for text in texts:
            kind, data = standing._next_message(line, 600)
            assert kind == BATCH
            assert pa.ipc.read_record_batch(pa.py_buffer(data), TEXTS).column(0).to_pylist() == [
                text
            ]
        assert standing._next_message(line, 600)[0] == END
    line.close()
    thread.join(60)
    assert not thread.is_alive()


def test_sparks_worker_comes_back_by_tls_where_spark_is_reached_so(
    made: Callable[..., RemoteFunction],
) -> None:
    function = made(ssl=True)
    try:
        first, second = ask(function, "a"), ask(function, "b")
        assert isinstance(function._pool._one._line._socket, TlsSocket)  # type: ignore[union-attr]
        assert first[0][1] == second[0][1]
    finally:
        function.release()
