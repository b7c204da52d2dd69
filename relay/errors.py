"""What can go wrong with the relay log."""

from __future__ import annotations


class RelayError(Exception):
    """The relay log can't do what was asked; the text names the file and what can be done."""


class RelayCorruptError(RelayError):
    """A file of the relay log is missing, incomplete or not what its record says."""


class WindowConflictError(RelayError):
    """A window record that begins at the same timestamp exists already: another process landed it."""


class RelayGapError(RelayError):
    """The chain of windows is broken: no window begins where the one before it ends, but later ones exist."""


class ClaimLostError(RelayError):
    """Another process has taken the role over; this one must stop without writing anything more."""
