"""PD's errors, and which of them are transient."""

from __future__ import annotations

import grpc

from sluice.errors import SluiceError
from sluice.tidb.rpc import describe, status

_RETRIED_CODES = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
}
_RETRIED_TEXTS = ("not leader", "server not started", "no leader")


class PDError(SluiceError):
    """PD could not answer. The message names the call, the addresses tried and the last failure."""

    transient = True
    hint = "see whether PD runs at pd-urls and can be reached from here"


def worth_retrying(error: grpc.RpcError) -> bool:
    """Return whether another attempt, perhaps at another member, may succeed."""
    code = status(error)
    return code in _RETRIED_CODES or any(text in describe(error) for text in _RETRIED_TEXTS)
