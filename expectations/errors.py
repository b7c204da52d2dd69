"""Define the errors of expectations."""

from __future__ import annotations

from sluice.errors import RequestError, SluiceError

__all__ = ["QualityError", "QualityFailedError", "SuiteError"]


class SuiteError(RequestError):
    """An invalid file with expectations; names the file and the place in it."""

    hint = "correct the file"


class QualityError(RequestError):
    """It can't be looked at what was asked for."""


class QualityFailedError(SluiceError):
    """Expectations aren't met that fail the run."""

    hint = (
        "look at the rows in the Data Docs: correct the data, or the expectation if it is what was"
        " wrong"
    )
