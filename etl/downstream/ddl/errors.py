"""Messages for DDL statements that fail or are unnecessary."""

from __future__ import annotations

from sluice.errors import SluiceError

ALREADY_EXISTS = "is there already: taken as done"
"""The end of a warning when a table that was to be created exists and is the same."""


class DdlError(SluiceError):
    """A DDL statement that can't be executed downstream.

    It names the statement, job id, commit_ts, the server's error and ways out.
    """

    hint = (
        "repair the downstream and let the task go on, or decide: `sluice ddl skip` or `sluice ddl"
        " replace`"
    )
