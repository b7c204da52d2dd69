"""The error of every settings file."""

from __future__ import annotations

from sluice.errors import RequestError


class SettingsError(RequestError, ValueError):
    """A key of the settings file is missing, unknown or has a wrong value.

    The text names the file and the key.
    """
