"""Running one job on Spark Connect and telling whose error it was when it fails."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

_RAISED = re.compile(r"^\s*(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception)): (.*)$", re.MULTILINE)


class WorkerError(Exception):
    """Something failed in a Spark worker; `kind` is the exception's class name there, `said` its text."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(f"{said} ({kind} in a Spark worker)")
        self.kind = kind
        self.said = said


def stream(spark: Any, frame: Any, timeout_s: float) -> Iterator[pa.RecordBatch]:
    """The rows of `frame` as they come; a job that lets `timeout_s` pass between two batches is interrupted. Raises
    WorkerError, and Spark's errors.
    """
    # DataFrame.toArrow would gather everything, and ask the server for a schema that is known.
    tables = spark.client.to_table_as_iterator(frame._plan.to_proto(spark.client), frame._plan.observations)
    while True:
        timer = threading.Timer(timeout_s, spark.interruptAll)
        timer.daemon = True
        timer.start()
        try:
            table = next(tables, None)
        except Exception as error:
            text = str(error)
            if "PYTHON_EXCEPTION" in text or "Traceback (most recent call last)" in text:
                raised = _RAISED.findall(text)
                if raised:
                    raise WorkerError(*raised[-1]) from error
            raise
        finally:
            timer.cancel()
        if table is None:
            return
        if isinstance(table, pa.Table):  # a schema may come too
            yield from table.to_batches()


def collect(spark: Any, frame: Any, timeout_s: float) -> pa.Table:
    """All rows of `frame`, which has at least one; see `stream`."""
    return pa.Table.from_batches(list(stream(spark, frame, timeout_s)))
