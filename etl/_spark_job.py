"""Running one job on Spark Connect and telling whose error it was when it fails."""

from __future__ import annotations

import re
import threading
from typing import Any

import pyarrow as pa

_RAISED = re.compile(r"^\s*(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception)): (.*)$", re.MULTILINE)


class WorkerError(Exception):
    """Something failed in a Spark worker; `kind` is the exception's class name there, `said` its text."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(f"{said} ({kind} in a Spark worker)")
        self.kind = kind
        self.said = said


def collect(spark: Any, frame: Any, timeout_s: float) -> pa.Table:
    """All rows of `frame`; a job that takes longer than `timeout_s` is interrupted. Raises WorkerError, and Spark's errors."""
    timer = threading.Timer(timeout_s, spark.interruptAll)
    timer.daemon = True
    timer.start()
    try:
        return frame.toArrow()
    except Exception as error:
        text = str(error)
        if "PYTHON_EXCEPTION" in text or "Traceback (most recent call last)" in text:
            raised = _RAISED.findall(text)
            if raised:
                raise WorkerError(*raised[-1]) from error
        raise
    finally:
        timer.cancel()
