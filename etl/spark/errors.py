"""What goes wrong on Spark, as our errors: the server is away, a job failed, or a worker says what
it met.

A worker tells its error itself, as JSON in the text that Spark hands on: only there the error is
still an object.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from sluice.errors import SluiceError, ours

_WORKER_ERROR_MARK = "sluice worker said "
_MAX_ERROR_CHARS = 20_000


class SparkError(SluiceError):
    """Spark failed; a new session, or the same job once more, may work."""

    hint = "look into the log of the Spark Connect server, then let the task go on"


class SparkUnavailableError(SparkError):
    """The Spark Connect server doesn't answer; names its address and how long it was tried."""

    transient = True
    hint = "start the Spark Connect server, or correct [spark] remote"


class SparkJobTimeout(SparkError):
    """A job gave nothing for so long that it was interrupted."""

    transient = True
    hint = (
        "look at the cluster's pages whether the Connect server's application has executors; if it"
        " gets none any more, start the server anew"
    )


class SlowWorkerError(SparkError):
    """A standing worker made nothing for too long; its session is as good as before."""

    transient = True


class WorkerError(SparkError):
    """Something failed in a Spark worker, which says itself whether it passes and what the way out
    is.
    """


@contextmanager
def report_to_client() -> Iterator[None]:
    """In a worker: what goes wrong inside arrives at the client as a WorkerError."""
    try:
        yield
    except Exception as error:
        told = ours(error)
        text = json.dumps(
            {
                "said": str(told)[:_MAX_ERROR_CHARS],
                "transient": told.transient,
                "hint": told.hint,
            }
        )
        raise WorkerError(_WORKER_ERROR_MARK + text) from error


def parse_worker_error(text: str, where: str = "in a Spark worker") -> WorkerError | None:
    """What a worker said, in the text of Spark's error; None if none said anything."""
    at = text.rfind(_WORKER_ERROR_MARK)
    if at < 0:
        return None
    try:
        said, _ = json.JSONDecoder().raw_decode(text, at + len(_WORKER_ERROR_MARK))
        told = WorkerError(f"{said['said']} ({where})", transient=said["transient"])
        told.hint = str(said["hint"])
    except (ValueError, KeyError):  # Spark has cut it off
        return None
    return told
