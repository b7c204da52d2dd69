"""Translate pyspark's and grpc's errors into SparkError, and decide which are transient."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from pyspark.errors import PySparkException

from sluice.etl.spark.errors import SparkError, parse_worker_error
from sluice.etl.spark.version_check import WorkerVersionMismatch

_MAX_DOUBTFUL_ERRORS = 3
_GRPC_DETAILS = re.compile(r'^\s*details = "(.*)"$', re.MULTILINE)
"""The server's or the network's message, where grpc shows its error over several lines."""
_CLOSED_CHANNEL = "Cannot invoke RPC"
"""grpc's ValueError for a call on a channel that another thread has closed."""
_SHOWN_CHARS = 4_000
_OTHER_PYTHON = re.compile(r"Python in worker[^\n]*?different version[^\n.]*?\d\.\d+[^\n]*?\d\.\d+")
_MISSING_PACKAGE = re.compile(r"No module named '[\w.]+'|PACKAGE_NOT_INSTALLED[^\n]*")
_ON_HOST = re.compile(r"\(TID \d+\) \((\S+) executor")
# Spark's messages when the server, the session, an executor or a worker has gone, or the job was
# interrupted.
_TRANSIENT_CONDITIONS = (
    "NO_ACTIVE_SESSION",
    "OPERATION_CANCELED",
    "INVALID_HANDLE",
    "INVALID_CURSOR",
    "RETRIES_EXCEEDED",
    "DEADLINE_EXCEEDED",
    "UNAVAILABLE",
    "StatusCode.CANCELLED",
    "cancelled",
    "SparkContext was shut down",
    "stopped SparkContext",
    "ExecutorLostFailure",
    "Python worker exited unexpectedly",
    "PYTHON_WORKER",
    "Connection reset",
    "Broken pipe",
)


class ErrorTranslator:
    """Translate Spark errors into SparkError.

    Errors of unknown kind are treated as transient a few times in a row (`_MAX_DOUBTFUL_ERRORS`),
    then as permanent.
    """

    def __init__(self) -> None:
        self._doubtful_count = 0

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Raise Spark's errors inside of the context as SparkError."""
        try:
            yield
        except (PySparkException, grpc.RpcError) as error:
            raise self.translate(error) from error
        except AssertionError as error:
            if not _is_lost_session(error):
                raise
            raise SparkError(summary_line(error), transient=True) from error
        except ValueError as error:
            if _CLOSED_CHANNEL not in str(error):
                raise
            raise SparkError(summary_line(error), transient=True) from error
        self._doubtful_count = 0

    def translate(self, error: Exception) -> SparkError:
        """Return the SparkError for an error of Spark."""
        known = parse_worker_error(str(error)) or _version_mismatch(str(error))
        if known is not None:
            return known
        if is_transient(error):
            return SparkError(summary_line(error), transient=True)
        self._doubtful_count += 1
        return SparkError(
            " ".join(str(error).split())[:_SHOWN_CHARS],
            transient=self._doubtful_count <= _MAX_DOUBTFUL_ERRORS,
        )


def _version_mismatch(text: str) -> SparkError | None:
    """Return the error for a worker with another Python, or without pyspark's own dependencies.

    No function of ours can report that, as none is ever called there.
    """
    found = _OTHER_PYTHON.search(text) or _MISSING_PACKAGE.search(text)
    if found is None:
        return None
    host = _ON_HOST.search(text)
    mismatch = SparkError(
        f"{host[1] if host else 'a host'} has a Spark worker that doesn't fit: {found[0]}"
    )
    mismatch.hint = WorkerVersionMismatch.hint
    return mismatch


def is_transient(error: BaseException) -> bool:
    """Return whether a new session may succeed where this error came up.

    It may if the server or the session is gone, or was interrupted.
    """
    if isinstance(error, grpc.RpcError) or _is_lost_session(error):
        return True
    return is_closed_session(error) or any(text in str(error) for text in _TRANSIENT_CONDITIONS)


def is_closed_session(error: BaseException) -> bool:
    """Return whether the server has closed the session."""
    return (
        "SESSION_CLOSED" in str(error)
        or getattr(error, "getCondition", lambda: "")() == "INVALID_HANDLE.SESSION_CLOSED"
    )


def summary_line(error: BaseException) -> str:
    """Return the error in a line."""
    text = str(error).strip() or type(error).__name__
    details = _GRPC_DETAILS.search(text) if text.startswith("<_") else None
    return (details[1] if details else text.splitlines()[0])[:300]


def _is_lost_session(error: BaseException) -> bool:
    """Return whether pyspark's assertion "server side session identifier" failed."""
    return isinstance(error, AssertionError) and "session identifier" in str(error)
