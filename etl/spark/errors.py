"""Errors on Spark: the server is unavailable, a job failed, or a worker reports an error.

A worker reports its error itself, as JSON in the text that Spark passes on: only there the error is
still an object.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from sluice.errors import SluiceError, ours

_WORKER_ERROR_MARK = "sluice worker error "
_MAX_ERROR_CHARS = 20_000


class SparkError(SluiceError):
    """Spark failed; a new session, or the same job once more, may work."""

    hint = "look into the log of the Spark Connect server, then let the task go on"


class SparkUnavailableError(SparkError):
    """The Spark Connect server doesn't answer; names its address and how long it was tried."""

    transient = True
    hint = "start the Spark Connect server, or correct [spark] remote"


class SparkJobTimeout(SparkError):
    """A job gave nothing before its time-out, and was interrupted."""

    transient = True
    hint = (
        "look at the cluster's pages whether the Connect server's application has executors; if it"
        " gets none any more, start the server again"
    )


class SlowWorkerError(SparkError):
    """A persistent worker returned nothing within the time limit; its session still works."""

    transient = True


class WorkerError(SparkError):
    """An error in a Spark worker, which reports itself whether it is transient, and its hint."""


@contextmanager
def report_to_client() -> Iterator[None]:
    """Raise errors inside of the context, in a worker, so that the client gets a WorkerError."""
    try:
        yield
    except Exception as error:
        reason = ours(error)
        text = json.dumps(
            {
                "message": str(reason)[:_MAX_ERROR_CHARS],
                "transient": reason.transient,
                "hint": reason.hint,
            }
        )
        raise WorkerError(_WORKER_ERROR_MARK + text) from error


def parse_worker_error(text: str, where: str = "in a Spark worker") -> WorkerError | None:
    """Parse a worker's report in the text of Spark's error; None if there is none."""
    at = text.rfind(_WORKER_ERROR_MARK)
    if at < 0:
        return None
    try:
        report, _ = json.JSONDecoder().raw_decode(text, at + len(_WORKER_ERROR_MARK))
        error = WorkerError(f"{report['message']} ({where})", transient=report["transient"])
        error.hint = str(report["hint"])
    except (ValueError, KeyError):  # Spark has cut it off
        return None
    return error
