"""Errors of the relay log."""

from __future__ import annotations

from sluice.errors import SluiceError


class RelayError(SluiceError):
    """The relay log can't do what was asked; the text names the file and what can be done."""

    hint = "bring back what it names from a copy, or land again into an empty relay log"


class RelayCorruptError(RelayError):
    """A file of the relay log is missing, incomplete or differs from its record."""


class WindowConflictError(RelayError):
    """A window record that begins at the same timestamp exists: another process landed it."""

    transient = True
    hint = "end the other process that lands into the same relay log"


class RelayGapError(RelayError):
    """The chain of windows is broken: no window begins where one ends, but later ones exist."""

    hint = (
        "land the gap again, or copy the downstream again as of a later time and set its checkpoint"
    )


class ClaimLostError(RelayError):
    """Another process has taken the role over; this one must stop without writing anything more."""

    hint = "end one of the two processes"


class ArchiveConflictError(RelayError):
    """Another process has changed the archive meanwhile.

    The change is made already, or has to be started over.
    """

    transient = True
    hint = "end the other process that writes into the same archive"
