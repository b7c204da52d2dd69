"""Messages between Airflow's processes and the pipeline's environment: JSON objects, one a line.

The provider and the pipeline may be installed apart (`agent_client`, `agent`), so either side may
be another version. The agent's first message has its `PROTOCOL`, and the client refuses another
one. Imported by both sides: nothing of Airflow's, nothing of the pipeline's.

    agent   {"protocol": 1, "version": "0.1.0"}
    client  {"call": "begin", "pipeline": "shop", "arguments": {…}}
    agent   {"log": ["sluice.restore", 20, "the job …"]}
    agent   {"connection": "shop_db"}
    client  {"connection": "shop_db", "fields": {…}}
    agent   {"result": …} or {"error": …, "hint": …, "transient": …, "ended": …}
"""

from __future__ import annotations

import json
import os
import select
import threading
from importlib import metadata
from typing import IO, Any

__all__ = ["PROTOCOL", "JsonLines", "distribution"]

PROTOCOL = 1
"""Changes with every message that an older side would misread."""
_SIGNAL_CHECK_MS = 1000
"""Python handles signals this often while a message is awaited: see `JsonLines.receive`."""
_READ_BYTES = 1 << 16
_DISTRIBUTIONS = ("sluice", "airflow-provider-sluice")


def distribution() -> tuple[str, str]:
    """Return the name and the version of the distribution that these files are from."""
    for name in _DISTRIBUTIONS:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return _DISTRIBUTIONS[0], ""


class JsonLines:
    """One end of a conversation, over two pipes. Any thread may send."""

    def __init__(self, reading: IO[str], writing: IO[str]) -> None:
        self._reading = reading
        self._writing = writing
        self._lock = threading.Lock()
        self._unread = b""
        self._arrivals = select.poll()
        self._arrivals.register(reading, select.POLLIN)

    def send(self, **message: Any) -> None:
        """Send a message. Raises OSError if the other end is gone, TypeError."""
        line = json.dumps(message, ensure_ascii=True)
        with self._lock:
            self._writing.write(line + "\n")
            self._writing.flush()

    def receive(self) -> dict[str, Any]:
        """Return the next message; waits for it. Raises EOFError at the end, ValueError."""
        while b"\n" not in self._unread:
            # Only the main thread handles signals, between two bytecodes. One that the kernel gives
            # to another thread, or that comes right before a read, does not end the read: Airflow's
            # SIGTERM would wait for the agent's next message. So no read begins before bytes came.
            if self._arrivals.poll(_SIGNAL_CHECK_MS):
                found = os.read(self._reading.fileno(), _READ_BYTES)
                if not found:
                    raise EOFError("the other end is gone")
                self._unread += found
        line, _, self._unread = self._unread.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError(f"a JSON object is expected, not {message!r:.100}")
        return message
