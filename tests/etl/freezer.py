"""Processes that apply and are stopped (SIGSTOP) at their n-th step towards the downstream or the
relay log.

The steps are not listed by name: every packet that goes to the server counts, and every look at
what operators ordered. So whatever a process reads or decides, there is a run in which it is
stopped between that and the next thing it does.

`python -m tests.etl.freezer` is a process that forks the ones that apply, so that each needs no
start of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
PATIENCE = "SLUICE_TEST_PATIENCE"
"""The environment's: how many times as long is waited."""
_ORDERS = ("control", "overrides", "aligned-chunks")


class Freezer:
    """Starts processes that apply a relay log to a server, each with settings of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.etl.freezer"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)

    def start(self, folder: Path, port: int, until: int, mode: str, stop: int | None = None) -> int:
        """A process that applies through `until`, stopped before its step number `stop`; its id.

        `folder` holds ``relay`` and gets ``trace.<pid>`` with a line a step and, at the end, how it
        ended.
        """
        return int(
            self._ask(do="start", folder=str(folder), port=port, until=until, mode=mode, stop=stop)[
                "pid"
            ]
        )

    def wait(self, pid: int, timeout_s: float) -> str:
        """``stopped``, ``ended``, or ``running`` when it takes longer.

        Where all takes longer, see `PATIENCE`.
        """
        timeout_s *= float(os.environ.get(PATIENCE, "1"))
        return str(self._ask(do="wait", pid=pid, timeout_s=timeout_s)["state"])

    def wake(self, pid: int) -> None:
        """Let a stopped process go on."""
        os.kill(pid, signal.SIGCONT)

    def kill(self, pid: int) -> None:
        """kill -9."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.wait(pid, 60)

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def trace_of(folder: Path, pid: int) -> list[str]:
    """The steps of a process, and how it ended."""
    return (folder / f"trace.{pid}").read_text(errors="replace").splitlines()


class _Steps:
    """Counts the steps of this process, and stops it before one of them."""

    def __init__(self, path: Path, stop: int | None) -> None:
        self._file = path.open("w", buffering=1, errors="replace")
        self._stop = stop
        self._count = 0
        self._lock = threading.Lock()

    def note(self, text: str) -> None:
        with self._lock:
            self._count += 1
            self._file.write(f"{self._count} {text}\n")
            if self._count == self._stop:
                os.kill(os.getpid(), signal.SIGSTOP)

    def end(self, text: str) -> None:
        self._file.write(f"end {' '.join(text.split())}\n")


def _watch(steps: _Steps) -> None:
    import pymysql.connections

    from sluice.relay.storage import LocalStorage

    write = pymysql.connections.Connection._write_bytes

    def written(connection: Any, data: Any) -> None:
        steps.note("sql " + " ".join(bytes(data[5:150]).decode("ascii", "replace").split()))
        write(connection, data)

    pymysql.connections.Connection._write_bytes = written
    for name in ("read", "names", "create", "replace", "remove"):
        function = getattr(LocalStorage, name)

        def looked(
            self: Any, path: str, *args: Any, _name: str = name, _function: Any = function
        ) -> Any:
            if path.startswith(_ORDERS):
                steps.note(f"{_name} {path}")
            return _function(self, path, *args)

        setattr(LocalStorage, name, looked)


def _apply(folder: Path, port: int, until: int, mode: str, steps: _Steps) -> None:
    from sluice.etl.apply import run_apply
    from sluice.etl.settings import Apply, Downstream, Relay, Settings, Upstream
    from tests.etl.preparing import local_preparer

    _watch(steps)
    downstream = Downstream("127.0.0.1", port, "sluice", read_timeout_s=20)
    settings = Settings(
        Upstream("unused"), Relay(f"file://{folder}/relay"), downstream, apply=Apply(mode, 2, 6)
    )
    summary = run_apply(settings, until_ts=until, run_seconds=240, prepare=local_preparer(settings))
    steps.end(f"at {summary.checkpoint}")


def _fork(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    folder = Path(request["folder"])
    steps = _Steps(folder / f"trace.{os.getpid()}", request["stop"])
    try:
        _apply(folder, int(request["port"]), int(request["until"]), request["mode"], steps)
    except BaseException as error:
        steps.end(f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)


def _state(pid: int, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if found:
            return "stopped" if os.WIFSTOPPED(status) else "ended"
        if time.monotonic() > deadline:
            return "running"
        time.sleep(0.005)


def _main() -> None:
    import sluice.etl.apply  # what is imported here needs no import in each
    import sluice.etl.downstream.sinks.mysql_parallel

    assert sluice.etl.downstream.sinks.mysql_parallel
    children = set()
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "start":
            children.add(pid := _fork(request))
            answer: dict[str, Any] = {"pid": pid}
        else:
            state = (
                _state(int(request["pid"]), float(request["timeout_s"]))
                if request["pid"] in children
                else "ended"
            )
            if state == "ended":
                children.discard(request["pid"])
            answer = {"state": state}
        print(json.dumps(answer), flush=True)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _main()
