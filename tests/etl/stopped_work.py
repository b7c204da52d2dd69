"""Work in processes of its own, each of which may be stopped (SIGSTOP) at its n-th look at the
storage or write to it, or word with a standing Spark worker, whatever that is.

`python -m tests.etl.stopped_work MODULE…` is a process that forks them, so that each needs no start
of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
_STEPS = (
    "new_file",
    "new_whole_file",
    "new_temp_file",
    "create",
    "replace",
    "read",
    "open",
    "names",
    "remove",
)
_FILE_STEPS = (
    "mkdir",
    "open",
    "read_bytes",
    "write_text",
    "replace",
    "unlink",
    "iterdir",
    "stat",
    "rmdir",
)


class Workshop:
    """Where processes begin that do what a function of one of `modules` does."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.etl.stopped_work", *modules],
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
        self._process.wait()

    def start(
        self, work: Callable[..., None], args: tuple[str, ...], steps: Path, stop: int | str = 0
    ) -> Worker:
        """A process that does `work(*args)` and stops itself before its step number `stop`.

        0: it doesn't; "create windows/ 3": before the third that begins so. The file `steps` gets a
        line a step, and how it ended.
        """
        request = {
            "work": [work.__module__, work.__name__],
            "args": args,
            "steps": str(steps),
            "stop": stop,
        }
        return Worker(self, int(self.ask(request)["pid"]), steps)

    @contextlib.contextmanager
    def stopped(
        self, work: Callable[..., None], args: tuple[str, ...], steps: Path, stop: int | str
    ) -> Iterator[Worker]:
        """A process that stands still at that step, or has ended before.

        It doesn't outlive the context.
        """
        worker = self.start(work, args, steps, stop)
        try:
            worker.rests()
            yield worker
        finally:
            worker.kill()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the process that forks says."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


class Worker:
    """A process that works."""

    def __init__(self, shop: Workshop, pid: int, steps: Path) -> None:
        self._shop = shop
        self._pid = pid
        self._steps = steps
        self._over = False

    def rests(self) -> bool:
        """Wait until it has stopped or ended: whether it has stopped."""
        if not self._over:
            self._over = not self._shop.ask({"wait": self._pid})["stopped"]
        return not self._over

    def is_alive(self) -> bool:
        """Whether it hasn't ended, going by what the system says of it."""
        return state_of(self._pid) not in {"Z", ""}

    def wake(self) -> None:
        """Let it go on, if it hasn't ended."""
        if not self._over:
            os.kill(self._pid, signal.SIGCONT)

    def ended(self) -> str:
        """Wait until it has ended: "done", or what went wrong."""
        assert not self.rests()
        return self.steps()[-1]

    def kill(self) -> None:
        """Whatever it does."""
        if not self._over:
            os.kill(self._pid, signal.SIGKILL)
            self.rests()

    def steps(self) -> list[str]:
        """What it has done so far."""
        return self._steps.read_text().splitlines()


def stop_at(
    step: int | str, told: Any, how: signal.Signals = signal.SIGSTOP, within: Path | None = None
) -> None:
    """Have this process write its steps to the file `told`, and stop itself before one of them, or
    kill. `within`: what is done to files of this folder is a step, and nothing else.
    """
    wanted, _, number = str(step).rpartition(" ")
    lock, count = threading.Lock(), 0

    def note(text: str) -> None:
        nonlocal count
        with lock:
            count += text.startswith(wanted)
            told.write(text + "\n")
            if count == int(number) and text.startswith(wanted):
                os.kill(os.getpid(), how)

    if within is None:
        from sluice.etl.spark._line import WorkerConnection
        from sluice.relay.storage import LocalStorage

        for owner, names in ((LocalStorage, _STEPS), (WorkerConnection, ("send", "receive"))):
            _step(
                owner,
                names,
                lambda _, args: str(args[0]) if args and isinstance(args[0], str) else "",
                note,
            )
    else:
        _step(
            Path,
            _FILE_STEPS,
            lambda path, _: path.name if path.is_relative_to(within) else None,
            note,
        )


def _step(
    owner: type, names: tuple[str, ...], told: Callable[[Any, Any], str | None], note: Any
) -> None:
    """Have each call of these methods be noted as `told` says, unless it says None."""
    for name in names:
        function = getattr(owner, name)

        def stepped(
            self: Any, *args: Any, _name: str = name, _function: Any = function, **more: Any
        ) -> Any:
            if (text := told(self, args)) is not None:
                note(f"{_name} {text}")
            return _function(self, *args, **more)

        setattr(owner, name, stepped)


def by_steps(
    function: Any, stop: str, told: str, how: signal.Signals = signal.SIGSTOP
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function for a worker of Spark, which stops itself, or kills, before a step of its own.

    Once: the one that comes next doesn't. `told`.<its id> has its steps, see `leave_nothing`. In
    this process, which does small work itself while no worker is there, nothing is stopped.
    """
    began, here = False, os.getpid()

    def stepped(batches: Iterator[Any]) -> Iterator[Any]:
        nonlocal began
        if not began and os.getpid() != here:
            began = True
            first = not Path(told).exists()
            Path(told).touch()
            steps = Path(f"{told}.{os.getpid()}").open("w", buffering=1, encoding="utf-8")  # noqa: SIM115 for good
            stop_at(stop if first else 0, steps, how)
        yield from function(batches)

    return stepped


def workers(told: str) -> list[int]:
    """The ids of the workers that have told of their steps."""
    return [int(each.suffix[1:]) for each in Path(told).parent.glob(f"{Path(told).name}.*")]


def leave_nothing(told: str) -> None:
    """End the workers: whoever else gets one of them would be stopped."""
    for pid in workers(told):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def state_of(pid: int) -> str:
    """What the system says of a process: "T" stands still, "Z" has ended; "" is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _fork(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    with Path(request["steps"]).open("w", buffering=1, encoding="utf-8") as told:
        try:
            stop_at(request["stop"], told)
            module, name = request["work"]
            getattr(importlib.import_module(module), name)(*request["args"])
            told.write("done\n")
        except BaseException:
            told.write(" | ".join(traceback.format_exc().split("\n")) + "\n")
        finally:
            told.flush()
            os._exit(0)


def _main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], os.WUNTRACED)
            answer: dict[str, Any] = {"stopped": os.WIFSTOPPED(status)}
        else:
            answer = {"pid": _fork(request)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _main()
