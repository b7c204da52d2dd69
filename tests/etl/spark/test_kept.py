"""While a lost Spark session is asked for, small calls are mapped in the caller's own process."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.errors import SluiceError
from sluice.etl.settings import Spark
from sluice.etl.spark import resilient_function, session
from sluice.etl.spark.errors import SparkError, SparkUnavailableError, WorkerError
from sluice.etl.spark.resilient_function import ResilientFunction
from sluice.etl.spark.session_target import SessionTarget
from sluice.etl.spark.worker_tuning import TEXTS
from tests.etl.spark.test_standing_worker import work
from tests.etl.spark_fixture import SparkServer


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """Wait for the first worker of a busy machine: only a server that is away is done without."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(resilient_function, "_CORE_TIMEOUT_S", 200.0)
        yield


class Away:
    """A Spark Connect server that was killed after three functions had a session on it.

    Each has met the loss.
    """

    def __init__(self, server: SparkServer, folder: Path) -> None:
        self.server = server
        self.may_connect = True
        self.function, self.checked, self.closed = (
            ResilientFunction(
                SessionTarget(Spark(server.remote), name, folder.as_uri()), work(), (TEXTS, TEXTS)
            )
            for name in ("kept", "checked", "closed")
        )
        self.function.connect(200)
        self.checked.connect(200, self.check)
        self.closed.connect(200)
        assert ask(self.function, "a")[1] != os.getpid()
        self.may_connect = False
        server.kill()
        for function in (self.function, self.checked, self.closed):
            with pytest.raises(SparkError) as caught:
                ask(function, "lost", is_small=function is self.function)
            assert caught.value.transient

    def check(self) -> None:
        if not self.may_connect:
            raise SluiceError("the claim is lost")


@pytest.fixture(scope="module")
def away(spark_server: SparkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Away]:
    try:
        away = Away(spark_server, tmp_path_factory.mktemp("kept"))
        yield away
        for function in (away.function, away.checked, away.closed):
            function.close()
    finally:
        if not spark_server.is_running:
            spark_server.start()


def ask(function: ResilientFunction, text: str, *, is_small: bool = True) -> tuple[str, int]:
    """What was answered, and by which process."""
    batches = list(function(pa.table({"text": [text]}), 60, alone=True, is_small=is_small))
    [answer] = [answer for batch in batches for answer in batch.column(0).to_pylist()]
    said, _, pid = answer.rpartition(" from ")
    return said, int(pid)


@pytest.mark.slow
def test_small_calls_go_on_while_spark_is_away(away: Away) -> None:
    away.function.connect(10)
    assert ask(away.function, "b") == ("b", os.getpid())
    with pytest.raises(WorkerError, match="refused") as caught:
        ask(away.function, "fail")
    assert not caught.value.transient
    assert ask(away.function, "c") == ("c", os.getpid())


@pytest.mark.slow
def test_a_large_call_needs_spark_and_says_that_it_is_away(away: Away) -> None:
    away.function.connect(10)
    with pytest.raises(SparkUnavailableError) as caught:
        ask(away.function, "a", is_small=False)
    assert caught.value.transient


@pytest.mark.slow
def test_who_may_not_connect_any_longer_is_told(away: Away) -> None:
    deadline = time.monotonic() + 60
    with pytest.raises(SluiceError, match="the claim is lost"):
        while time.monotonic() < deadline:
            away.checked.connect(10, away.check)
            ask(away.checked, "b")
            time.sleep(0.01)


@pytest.mark.slow
def test_nothing_asks_for_a_session_once_the_function_is_closed(away: Away) -> None:
    asking = away.closed._reconnector
    assert asking is not None and not asking.is_over
    away.closed.close()
    deadline = time.monotonic() + 60
    while not asking.is_over:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(SparkError):
        ask(away.closed, "a")


@pytest.mark.slow
def test_calls_go_to_a_worker_again_once_spark_is_back(away: Away) -> None:
    away.server.start()
    deadline = time.monotonic() + 200
    while ask(away.function, "a")[1] == os.getpid():
        assert time.monotonic() < deadline, "the new session is never used"
        away.function.connect(10)
        time.sleep(0.1)
    assert ask(away.function, "b", is_small=False)[1] != os.getpid()


class Claim:
    """What is checked before each attempt to connect."""

    def __init__(self) -> None:
        self.is_lost = False

    def check(self) -> None:
        if self.is_lost:
            raise SluiceError("the claim is lost")


@pytest.fixture
def unreached(tmp_path: Path) -> Iterator[ResilientFunction]:
    """Nobody listens where its server should be."""
    function = ResilientFunction(
        SessionTarget(Spark("sc://127.0.0.1:1"), "unreached", tmp_path.as_uri()),
        work(),
        (TEXTS, TEXTS),
    )
    yield function
    function.close()


def test_small_calls_go_on_in_a_process_that_begins_while_spark_is_away(
    unreached: ResilientFunction,
) -> None:
    # so it isn't waited for
    with pytest.raises(SparkUnavailableError, match="no server takes connections"):
        unreached.connect(200)
    unreached.connect(200)
    assert ask(unreached, "a") == ("a", os.getpid())
    with pytest.raises(
        SparkUnavailableError, match=r"no server takes connections at sc://127\.0\.0\.1:1"
    ):
        ask(unreached, "a", is_small=False)


def test_a_server_that_goes_while_it_is_asked_for_a_session_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def connect(place: SessionTarget, timeout_s: float) -> None:
        if timeout_s:
            asked.set()
            assert go_on.wait(60)
        raise SparkUnavailableError("it doesn't answer")

    monkeypatch.setattr(session, "connect", connect)
    answers: list[tuple[str, int]] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        remote = f"sc://127.0.0.1:{server.getsockname()[1]}"
        function = ResilientFunction(
            SessionTarget(Spark(remote), "goes", tmp_path.as_uri()), work(), (TEXTS, TEXTS)
        )
        with pytest.raises(SparkUnavailableError):
            function.connect(0)
        assert asked.wait(60)
        asking = threading.Thread(target=lambda: answers.append(ask(function, "a")))
        asking.start()
        asking.join(0.5)
        assert asking.is_alive() and not answers, "a server that is there is waited for"
    asking.join(10)
    assert answers == [("a", os.getpid())]
    go_on.set()
    function.close()


@pytest.mark.parametrize("is_over", [True, False])
def test_a_new_claim_isnt_refused_for_the_one_before(
    unreached: ResilientFunction, *, is_over: bool
) -> None:
    first, second = Claim(), Claim()
    with pytest.raises(SparkUnavailableError):
        unreached.connect(0, first.check)
    asking = unreached._reconnector
    assert asking is not None
    first.is_lost = True
    deadline = time.monotonic() + 60
    while is_over and not asking.is_over:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    unreached.connect(0, second.check)
    for text in "ab":
        assert ask(unreached, text) == (text, os.getpid())
        unreached.connect(0, second.check)
        time.sleep(0.2)


@pytest.fixture
def mortal(spark_server: SparkServer) -> Iterator[SparkServer]:
    """Give the server, running, to a test that may kill it."""
    if not spark_server.is_running:
        spark_server.start()
    yield spark_server
    if not spark_server.is_running:
        spark_server.start()


@pytest.mark.beyond_ci
@pytest.mark.slow
def test_a_function_whose_worker_was_just_let_go_maps_small_calls_here_once_the_server_is_gone(
    mortal: SparkServer, tmp_path: Path
) -> None:
    function = ResilientFunction(
        SessionTarget(Spark(mortal.remote), "changed", tmp_path.as_uri()), work(), (TEXTS, TEXTS)
    )
    try:
        function.connect(200)
        assert ask(function, "a")[1] != os.getpid()
        assert function._function is not None
        function._function.release()
        mortal.kill()
        assert ask(function, "b") == ("b", os.getpid())
        with pytest.raises(SparkUnavailableError):
            ask(function, "c", is_small=False)
    finally:
        function.close()


@pytest.mark.beyond_ci
@pytest.mark.slow
def test_a_server_that_goes_while_its_worker_is_awaited_is_away(
    mortal: SparkServer, tmp_path: Path
) -> None:
    function = ResilientFunction(
        SessionTarget(Spark(mortal.remote), "awaited", tmp_path.as_uri()), work(), (TEXTS, TEXTS)
    )
    answers: list[tuple[str, int]] = []
    asking = threading.Thread(target=lambda: answers.append(ask(function, "a")), daemon=True)
    try:
        function.connect(200)
        with mortal.frozen():
            asking.start()
            asking.join(1)
            assert asking.is_alive() and not answers, (
                "a server that takes connections is waited for"
            )
            mortal.kill()
        asking.join(60)
        assert answers == [("a", os.getpid())]
    finally:
        function.close()


def deadly(caller: int, here: Path):
    """Ends its worker; notes if it is called in the caller's process."""

    def run(batches):
        import os

        for batch in batches:
            if batch.column(0).to_pylist() == ["die"]:
                if os.getpid() != caller:
                    os._exit(1)
                here.touch()
            yield batch

    return run


@pytest.mark.slow
def test_a_call_whose_worker_dies_isnt_mapped_in_the_callers_process(
    spark_remote: str, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    place = SessionTarget(Spark(spark_remote), "deadly", tmp_path.as_uri())
    function = ResilientFunction(place, deadly(os.getpid(), here), (TEXTS, TEXTS))

    def call(text: str) -> list[str]:
        function.connect(200)
        batches = list(function(pa.table({"text": [text]}), 60, alone=True, is_small=True))
        return [each for batch in batches for each in batch.column(0).to_pylist()]

    assert call("a") == ["a"]
    for _ in range(2):
        with pytest.raises(SparkError):
            call("die")
    assert not here.exists()
    deadline = time.monotonic() + 120
    while True:
        try:
            assert call("b") == ["b"]
            break
        except SparkError:
            assert time.monotonic() < deadline
    function.close()
