"""Start parts of the one-machine stack side by side, each once those that it needs serve."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from sluice.devstack import processes
from sluice.devstack.launch import LOOPBACK, Service, base_environment, secrets_of
from sluice.devstack.state import StackError, StartedService, load_state, save_state

_LOG_TAIL_LINES = 15
_REPORT_INTERVAL_S = 10.0
"""Airflow's parts need a minute on two cores: without a line in between a start looks hung."""


class PartStarter:
    """Start parts as child processes, and note each in state.json.

    `state_lock` guards that file, and `children` gets each part's process.
    """

    def __init__(
        self,
        home: Path,
        state_lock: threading.Lock,
        children: dict[str, subprocess.Popen[bytes]],
    ) -> None:
        self._home, self._state_lock, self._children = home, state_lock, children

    def start(self, parts: list[Service], report: Callable[[str], None]) -> None:
        """Start parts, and report each that serves and which ones don't yet.

        Raises StackError for the first that fails.
        """
        ready = {part.name: threading.Event() for part in parts}
        report(f"starting {', '.join(part.name for part in parts)}")
        failed = threading.Event()
        errors: list[StackError] = []

        def start_after_others(part: Service) -> None:
            try:
                for needed in part.needs:
                    while needed in ready and not ready[needed].wait(0.05):
                        if failed.is_set():
                            return
                began = time.monotonic()
                self._start_one(part, failed)
                if not failed.is_set():
                    report(
                        f"{part.name:<22} ready after {time.monotonic() - began:4.1f} s  "
                        f" {part.summary}".rstrip()
                    )
            except StackError as error:
                errors.append(error)
                failed.set()
            except Exception as error:
                errors.append(StackError(f"{part.name} could not be started: {error}"))
                failed.set()
            else:
                ready[part.name].set()

        with ThreadPoolExecutor(len(parts), thread_name_prefix="start") as pool:
            futures = [pool.submit(start_after_others, part) for part in parts]
            try:
                self._report_waits(futures, [part.name for part in parts], report)
                for future in futures:
                    future.result()
            except BaseException:
                failed.set()
                raise
        if errors:
            raise errors[0]

    @staticmethod
    def _report_waits(
        futures: Sequence[Future[None]], names: Sequence[str], report: Callable[[str], None]
    ) -> None:
        """Report every _REPORT_INTERVAL_S which parts don't serve yet, until all end."""
        began = time.monotonic()
        while wait(futures, _REPORT_INTERVAL_S).not_done:
            left = [name for future, name in zip(futures, names, strict=True) if not future.done()]
            if left:
                report(f"  {time.monotonic() - began:3.0f} s  waiting for {', '.join(left)}")

    def _start_one(self, part: Service, cancelled: threading.Event) -> None:
        part.prepare()
        if cancelled.is_set():
            return
        log = self._home / "logs" / f"{part.name}.log"
        env = {
            **base_environment(),
            **part.env,
            **secrets_of(part),
            processes.STATE_MARK: str(self._home),
            processes.PART_MARK: part.name,
        }
        log_start = log.stat().st_size if log.exists() else 0
        started_ms = int(time.time() * 1000)
        child, process = processes.spawn(part.argv, env, part.cwd, log)
        self._children[part.name] = child
        with self._state_lock:
            state = load_state(self._home)
            state.parts[part.name] = StartedService(
                process,
                LOOPBACK,
                dict(part.ports),
                list(part.argv),
                dict(part.env),
                str(log),
                started_ms,
            )
            save_state(self._home, state)
        self._wait_ready(part, child, log, log_start, cancelled)

    def _wait_ready(
        self,
        part: Service,
        child: subprocess.Popen[bytes],
        log: Path,
        log_start: int,
        cancelled: threading.Event,
    ) -> None:
        deadline = time.monotonic() + part.start_timeout_s
        pause = 0.05
        while not cancelled.is_set():
            code = child.poll()
            if code is not None:
                how = f"exit code {code}" if code >= 0 else f"signal {-code}"
                raise StackError(
                    f"{part.name} ended while starting ({how}).\n{_tail(log, log_start)}"
                )
            try:
                part.probe()
                return
            except Exception as error:
                if time.monotonic() > deadline:
                    reason = f"{type(error).__name__}: {error}"
                    raise StackError(
                        f"{part.name} was not ready within {part.start_timeout_s:.0f} s; the last"
                        f" answer: {reason}\n{_tail(log, log_start)}"
                    ) from None
            time.sleep(pause)
            pause = min(pause * 1.5, 0.3)


def _tail(log: Path, start: int) -> str:
    """Return the last lines that a part wrote since `start`, with the name of the file."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - 16_384))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return f"(no log at {log})"
    if not lines:
        return f"It wrote nothing to {log}."
    return f"The end of {log}:\n" + "\n".join(f"  {line}" for line in lines[-_LOG_TAIL_LINES:])
