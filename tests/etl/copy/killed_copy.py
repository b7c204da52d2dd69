"""Bootstraps in processes of their own, which a signal meets before the n-th thing that they change
downstream or keep in their ledger. One process imports everything and forks the others: `python -m
tests.etl.copy.killed_copy` reads commands from stdin and answers each, JSON lines:

- {"port", "folder", "what", "place", "at", "signal"}: answered with {"steps"} when it is through,
  {"failed": the error}, {"killed": signal} or {"stopped": process id}
- {"wake": process id}: answered in the same way
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sluice.relay.jobs.job
from sluice.etl.copy.bootstrap import BootstrapPlanner
from sluice.etl.copy.worker import make_loads
from sluice.etl.downstream.mysql import MySQLSession
from sluice.etl.settings import Downstream
from sluice.relay.storage import LocalStorage
from tests.etl.copy import small_story
from tests.etl.copy.copying import BANK_ONLY, bootstrap, settings_of

ROOT = Path(__file__).resolve().parents[3]
_CHANGE_NOTHING = ("SELECT", "SHOW", "SET", "START TRANSACTION", "ROLLBACK")
"""To die before one of these is to die before what comes next."""


class Forks:
    """The process that forks, seen from a test."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(
        self, port: int, folder: Path, place: str | Path, at: int | str, **more: Any
    ) -> dict[str, Any]:
        """A bootstrap into the server at `port` from `place`.

        `at`: a number of steps, 0 for never, or what the statement holds before which the signal
        comes. `what`: "story" or "bank"; `signal`: SIGKILL or SIGSTOP.
        """
        given = {"what": "story", "signal": int(signal.SIGKILL), **more}
        return self._ask(
            {"port": port, "folder": str(folder), "place": str(place), "at": at, **given}
        )

    def wake(self, process: int) -> dict[str, Any]:
        """Let a stopped one go on."""
        return self._ask({"wake": process})

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def through(self, port: int, folder: Path, place: str | Path, **more: Any) -> int:
        """A bootstrap that nothing meets; its steps."""
        told = self.run(port, folder, place, 0, **more)
        assert "steps" in told, told["failed"]
        return int(told["steps"])


@contextlib.contextmanager
def forking(module: str = "tests.etl.copy.killed_copy") -> Iterator[Forks]:
    """A process that forks; what it has stopped goes with it. `module` has a `main`."""
    command = [sys.executable, "-m", module]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Forks(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


class Server:
    def __init__(self, port: int) -> None:
        self.downstream = Downstream(host="127.0.0.1", port=port, user="sluice")


def counting(command: dict[str, Any]) -> Iterator[int]:
    """Counts what this process changes downstream or keeps, and has the command's signal meet it
    there.
    """
    steps = itertools.count(1)
    at = command["at"]

    def meet(statement: str) -> None:
        nonlocal at
        if statement.startswith(_CHANGE_NOTHING):
            return
        number = next(steps)
        if at and (at in statement if isinstance(at, str) else number == at):
            at = 0
            os.kill(os.getpid(), command["signal"])

    def counted(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def before(self: Any, what: Any, *args: Any, **options: Any) -> Any:
            meet(str(what))
            return original(self, what, *args, **options)

        setattr(kind, name, before)

    counted(MySQLSession, "_run")
    counted(LocalStorage, "create")
    counted(LocalStorage, "replace")
    return steps


def copy(command: dict[str, Any]) -> int:
    steps = counting(command)
    folder, place = Path(command["folder"]), command["place"]
    server: Any = Server(command["port"])
    if command["what"] == "bank":
        bootstrap(settings_of(server, folder, BANK_ONLY), Path(place))
    else:
        source = small_story.open_source(place)
        made = BootstrapPlanner(settings_of(server, folder), source, small_story.definitions(), 7)
        made.indexes_after_bytes = 0
        made.run(lambda chunk, table: make_loads(source.spec(), chunk, table))
    return next(steps)


def forked(do: Callable[[dict[str, Any]], int], command: dict[str, Any], said: Path) -> int:
    """The id of a process that does it."""
    process = os.fork()
    if process:
        return process
    try:
        said.write_text(json.dumps({"steps": do(command)}))
    except BaseException:
        said.write_text(json.dumps({"failed": traceback.format_exc()}))
    os._exit(0)


def main(do: Callable[[dict[str, Any]], int] = copy) -> None:
    """`do` what each command says in a process of its own; it returns how many steps that were."""
    sluice.relay.jobs.job.DEAD_AFTER_S = 0.5
    started: dict[int, Path] = {}
    for number, line in enumerate(sys.stdin):
        command = json.loads(line)
        if "wake" in command:
            process = command["wake"]
            os.kill(process, signal.SIGCONT)
        else:
            said = Path(f"{command['folder']}-{number}.json")
            process = forked(do, command, said)
            started[process] = said
        _, status = os.waitpid(process, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            answer = json.dumps({"stopped": process})
        else:
            said = started.pop(process)
            answer = (
                json.dumps({"killed": os.WTERMSIG(status)})
                if os.WIFSIGNALED(status)
                else said.read_text()
            )
        print(answer, flush=True)
    for process in started:
        os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
