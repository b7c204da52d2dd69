"""Make calls to a pipeline (`calls`): here, or in an agent where Airflow has no pipeline installed.

`[airflow] python` names the interpreter of the pipeline's environment. Without it the call runs in
this process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

from sluice.airflow.messages import PROTOCOL, JsonLines, distribution
from sluice.airflow.notifying import notified_of_waits
from sluice.airflow.versions import AirflowException, AirflowFailException, AirflowNotFoundException
from sluice.errors import SluiceError
from sluice.etl.settings.pipelines import NamedPipeline

__all__ = [
    "AgentError",
    "TaskFailedPermanently",
    "airflow_connection",
    "call",
    "call_kept",
    "call_task",
    "end_call",
]

log = logging.getLogger("sluice")

_END_TIMEOUT_S = 10.0
"""How long an agent may take to end; it has nothing left to do then."""
_NOT_AGENTS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables of Airflow's environment, which would lead the other interpreter astray."""


class AgentError(SluiceError):
    """The pipeline's environment can't be reached, or the call failed there."""

    hint = "see the task's log"


class TaskFailedPermanently(SluiceError, AirflowFailException):  # type: ignore[misc] # Airflow is untyped
    """Airflow doesn't try the task again. Each one has a hint of its own."""

    hint = "see the task's log"


def call_task(pipeline: NamedPipeline, name: str, /, **arguments: Any) -> Any:
    """Make a call for a task. Raises TaskFailedPermanently, or what passes.

    A task that was ended gets AirflowException; in this process KeyboardInterrupt.
    """
    try:
        with notified_of_waits(pipeline, call):
            return call(pipeline, name, **arguments)
    except SluiceError as error:
        if error.transient:
            raise
        raise TaskFailedPermanently(str(error), hint=error.hint) from error.__cause__


def call(pipeline: NamedPipeline, name: str, /, **arguments: Any) -> Any:
    """Make a call, and return its result. Raises SluiceError."""
    if not pipeline.airflow.python:
        return _call_here(pipeline, name, arguments)
    with contextlib.closing(_Agent(pipeline)) as agent, agent.forwarding_sigterm():
        return agent.call(name, arguments)


def call_kept(pipeline: NamedPipeline, name: str, /, **arguments: Any) -> Any:
    """Make a short call by an agent that is kept for the next one. Raises SluiceError.

    For processes that ask again and again, from any of their threads.
    """
    if not pipeline.airflow.python:
        return _call_here(pipeline, name, arguments)
    with _kept_lock:
        lock = _kept_locks.setdefault(pipeline.name, threading.Lock())
    with lock:
        agent = _kept.get(pipeline.name)
        if agent is None or agent.python != pipeline.airflow.python:
            agent = _kept[pipeline.name] = _Agent(pipeline)
        try:
            return agent.call(name, arguments)
        finally:
            if not agent.is_usable:
                del _kept[pipeline.name]
                agent.close()


def end_call(pipeline: NamedPipeline) -> None:
    """End the work of this process's call as Ctrl-C does; an agent has had SIGTERM itself."""
    if pipeline.airflow.python:
        return
    from sluice.airflow.calls import interrupt_spark

    interrupt_spark()
    raise KeyboardInterrupt


class AgentLostError(AgentError):
    """The agent is gone without a result."""

    transient = True
    hint = "see the task's log, and the machine's: memory that was short is the usual reason"


def _call_here(pipeline: NamedPipeline, name: str, arguments: dict[str, Any]) -> Any:
    try:
        from sluice.airflow.calls import CALLS
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("sluice"):
            raise
        raise AgentError(
            f"this Airflow has no pipeline installed, and {pipeline.path} names no interpreter",
            hint='set python = "/opt/sluice/bin/python" in [airflow]',
        ) from None
    return CALLS[name](pipeline, **arguments)


class _Agent:
    """The agent process of a pipeline."""

    def __init__(self, pipeline: NamedPipeline) -> None:
        """Start it. Raises AgentError."""
        self.python = pipeline.airflow.python
        self._pipeline = pipeline
        try:
            self._process = subprocess.Popen(
                [self.python, "-P", "-m", "sluice.airflow.agent"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={key: it for key, it in os.environ.items() if key not in _NOT_AGENTS},
            )
        except OSError as error:
            raise AgentError(
                f"{pipeline.path}: [airflow] python = {self.python!r}: {error.strerror}",
                hint="install Sluice there, or name the interpreter of its environment",
            ) from None
        assert self._process.stdout is not None and self._process.stdin is not None
        self._line = JsonLines(self._process.stdout, self._process.stdin)
        self._said_hello = False
        self.is_usable = False

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Make one call. Raises AgentError, AgentLostError, AirflowException if it was ended."""
        try:
            if not self._said_hello:
                self._shake_hands(self._line.receive())
            self.is_usable = False
            self._line.send(call=name, pipeline=self._pipeline.name, arguments=arguments)
            while True:
                message = self._line.receive()
                if "log" in message:
                    logger, level, text = message["log"]
                    logging.getLogger(logger).log(level, "%s", text)
                elif "connection" in message:
                    self._line.send(**airflow_connection(message["connection"]))
                else:
                    self.is_usable = True
                    return _result(message)
        except (OSError, EOFError, ValueError) as error:
            raise AgentLostError(
                f"the agent of {self._pipeline.path or 'the pipeline'} is gone: {error}"
            ) from None

    @contextlib.contextmanager
    def forwarding_sigterm(self) -> Iterator[None]:
        """Forward SIGTERM, which Airflow sends to a task that is killed, cleared or marked."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def forward(number: int, frame: Any) -> None:
            self._process.terminate()
            if callable(before):
                before(number, frame)

        before = signal.signal(signal.SIGTERM, forward)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def close(self) -> None:
        """End the agent: in the middle of a call that pauses its job."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _shake_hands(self, hello: dict[str, Any]) -> None:
        version = distribution()[1]
        if hello.get("protocol") != PROTOCOL:
            raise AgentError(
                f"{self.python} has Sluice {hello.get('version')}, which speaks another protocol"
                f" ({hello.get('protocol')}) than the provider {version}"
                f" ({PROTOCOL})",
                hint="install the same version of Sluice on both sides",
            )
        self._said_hello = True
        if hello.get("version") != version:
            log.info("versions differ: pipeline=%s provider=%s", hello.get("version"), version)


_kept: dict[str, _Agent] = {}
"""Agents of `call_kept` by pipeline; they end with this process."""
_kept_locks: dict[str, threading.Lock] = {}
_kept_lock = threading.Lock()


def _result(message: dict[str, Any]) -> Any:
    if "error" not in message:
        return message["result"]
    if message.get("ended"):
        raise AirflowException("the task was ended")
    raise AgentError(message["error"], hint=message["hint"], transient=message["transient"])


def airflow_connection(name: str) -> dict[str, Any]:
    """Return the message with Airflow's connection of a name, from any secrets backend."""
    from airflow.sdk import Connection

    try:
        it = Connection.get(name)
    except Exception as error:  # Airflow's own: not found, or no way to ask for it now
        return {
            "connection": name,
            "error": f"the Airflow connection {name}: {type(error).__name__}: {error}",
            "transient": not isinstance(error, AirflowNotFoundException),
        }
    keys = ("conn_type", "login", "password", "host", "port", "schema")
    fields = {key: getattr(it, key) for key in keys} | {"extra_dejson": dict(it.extra_dejson)}
    return {"connection": name, "fields": fields}
