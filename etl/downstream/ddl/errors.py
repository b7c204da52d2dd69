"""What is told of a DDL statement: that it can't be executed, or that it need not be."""

from __future__ import annotations

from sluice.errors import SluiceError

ALREADY_EXISTS = "is there already: taken as done"
"""How a warning ends when a table that was to be created is there, and is the one."""


class DdlError(SluiceError):
    """A DDL statement that can't be executed downstream: names statement, job id, commit_ts, the
    server's error, ways out.
    """

    way_out = (
        "repair the downstream and let the task go on, or decide: `sluice ddl skip` or `sluice ddl"
        " replace`"
    )
