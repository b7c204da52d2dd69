"""Run a pipeline's calls for Airflow's processes: ``python -m sluice.airflow.agent``.

The provider starts it in the pipeline's environment (`[airflow] python`) and talks to it over stdin
and stdout (`messages`). It serves one call after another, and ends with its caller. SIGTERM ends
the call as Ctrl-C ends a command: a job is paused, and Spark ends its work.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
from types import FrameType
from typing import Any

from sluice.airflow.calls import CALLS, ENDS_BY_ITSELF, interrupt_spark
from sluice.airflow.messages import PROTOCOL, JsonLines, distribution
from sluice.errors import DefectError, RequestError, ours
from sluice.etl.settings.airflow_connections import ResolvedConnection
from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.pipelines import pipelines
from sluice.etl.settings.secrets import ask_for_connections

log = logging.getLogger("sluice")


class UnknownCallError(RequestError):
    """The provider made a call that this version has not."""

    hint = "install the same version of Sluice in Airflow and in the pipeline's environment"


class Agent:
    """One conversation with a caller."""

    def __init__(self, line: JsonLines) -> None:
        self._line = line
        self._calls: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._found: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._current = ""
        self._is_ended = False

    def run(self) -> None:
        """Serve calls until the caller is gone."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        ask_for_connections(self._connection)
        self._line.send(protocol=PROTOCOL, version=distribution()[1])
        threading.Thread(target=self._read, name="caller", daemon=True).start()
        while (message := self._calls.get()) is not None:
            self._line.send(**self._answer(message))
            self._current = ""

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        self._is_ended, self._current = False, message["call"]
        try:
            function = CALLS.get(self._current)
            if function is None:
                raise UnknownCallError(f"this version of Sluice has no call {self._current!r}")
            pipeline = pipelines().named(message["pipeline"])
            return {"result": function(pipeline, **message["arguments"])}
        except KeyboardInterrupt:
            return {"error": "the call was ended", "ended": True}
        except Exception as error:
            reason = ours(error)
            if isinstance(reason, DefectError):
                log.exception("the call %s met a defect", self._current)
            return {"error": str(reason), "hint": reason.hint, "transient": reason.transient}
        finally:
            self._is_ended = True  # a second SIGTERM must not take the answer along

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        if not self._current:
            os._exit(0)
        if self._current in ENDS_BY_ITSELF or self._is_ended:
            return
        self._is_ended = True  # Airflow signals the whole process group, and the caller does, too
        interrupt_spark()
        raise KeyboardInterrupt

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError, ValueError):
            while True:
                message = self._line.receive()
                (self._found if "connection" in message else self._calls).put(message)
        if self._current and self._current not in ENDS_BY_ITSELF:
            os.kill(os.getpid(), signal.SIGTERM)
        self._calls.put(None)

    def _connection(self, name: str) -> ResolvedConnection:
        """Return a connection that Airflow has. Raises SettingsError."""
        with self._asking:
            self._line.send(connection=name)
            found = self._found.get()
        if "error" in found:
            raise SettingsError(found["error"], transient=bool(found["transient"]))
        return ResolvedConnection(**found["fields"])


class _SentLogs(logging.Handler):
    """Send log records to the caller, whose log is Airflow's."""

    def __init__(self, line: JsonLines) -> None:
        super().__init__()
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._line.send(log=[record.name, record.levelno, self.format(record)])


def main() -> None:
    """Serve the process that has the other ends of stdin and stdout."""
    writing = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what other libraries print isn't for the caller
    reading = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    line = JsonLines(reading, writing)
    root = logging.getLogger()
    root.addHandler(_SentLogs(line))
    root.setLevel(logging.INFO)
    code = 0
    try:
        Agent(line).run()
    except OSError:  # the caller is gone
        code = 1
    sys.stderr.flush()
    os._exit(code)  # what is left are other people's threads


if __name__ == "__main__":
    main()
