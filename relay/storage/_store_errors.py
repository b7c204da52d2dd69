"""Translate an object store's errors: store, attempted call, number of attempts, and hint."""

from __future__ import annotations

import re

from obstore.exceptions import (
    AlreadyExistsError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from sluice.errors import MachineError, SluiceError

__all__ = ["ChangedError", "UnknownConditionError", "translate_error"]

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_RETRIES = re.compile(r"after (\d+) retries")
_NO_BUCKET = re.compile(
    r"NoSuchBucket|ContainerNotFound|specified bucket does not exist", re.IGNORECASE
)
_SHOWN_CHARS = 300
_PROVIDER = "External AWS credential provider"
"""What obstore's error names if `aws_provider`'s function raised."""
_CLOCK_SKEW_CODES = ("RequestTimeTooSkewed", "RequestExpired")


class ChangedError(MachineError, OSError):
    """A file has changed since its version was looked up."""

    hint = "it is tried again; if it lasts, find the other process that writes below the URL"


class UnknownConditionError(SluiceError, OSError):
    """The store doesn't know the condition."""

    hint = "use a store with conditional PUTs, see docs/how-to/object-stores.md"


def translate_error(url: str, what: str, error: Exception) -> OSError:
    """Translate an error of obstore's for a call at `url`."""
    text = str(error)
    status = match[1] if (match := _STATUS.search(text)) else ""
    code = match[1] if (match := _CODE.search(text)) else ""
    attempts = int(match[1]) + 1 if (match := _RETRIES.search(text)) else 1
    where = f"{url}: {what}"
    if isinstance(error, AlreadyExistsError):
        return FileExistsError(f"{where}: it exists")
    if _NO_BUCKET.search(text):
        return OSError(f"{where}: the bucket isn't there; make it, or correct the URL")
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"{where}: it isn't there")
    if isinstance(error, PreconditionError):
        return ChangedError(f"{where}: another process has changed it")
    if status == "501" or isinstance(error, (NotImplementedError, NotSupportedError)):
        return UnknownConditionError(f"{where}: {_cause(text)}")
    often = f", {attempts} attempts" if attempts > 1 else ""
    hint = (
        "see whether the profile, the role or the web identity's token is right"
        if _PROVIDER in text
        else _hint(status, code)
    )
    message = f"{where}: {_cause(text)}{often}; {hint}"
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        return PermissionError(message)
    return OSError(message)


def _cause(text: str) -> str:
    """Return the store's, or the network's, own message."""
    line = text.split("\n", 1)[0]
    head, _, tail = line.rpartition(" - ")
    cause = (tail if head else line).partition(": <")[0].strip()
    code = match[1] if (match := _CODE.search(text)) else ""
    return f"{cause[:_SHOWN_CHARS]}{f' ({code})' if code else ''}"


def _hint(status: str, code: str) -> str:
    if code in _CLOCK_SKEW_CODES:
        return "this machine's clock and the store's differ by many minutes: set it (NTP)"
    if status in ("401", "403"):
        return (
            "see that the credentials are there, and may list, read, write and remove below the URL"
        )
    if status in ("429", "503") or code == "SlowDown":
        return (
            "it is tried again; if it lasts the store wants fewer requests: a longer [relay]"
            " put-every"
        )
    if status.startswith("5"):
        return "it is tried again; if it lasts look at how the store is"
    if status:
        return "correct the URL, its region and its endpoint"
    return "it is tried again; if it lasts look at the network, and at the endpoint's address"
