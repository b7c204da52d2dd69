"""Define the errors of taking a transaction back."""

from __future__ import annotations

import shlex

from sluice.errors import RequestError


class UndoError(RequestError, ValueError):
    """Names the transaction and what about it can't be taken back."""

    hint = "restore the moment before it beside what is there, and take the rows from it"


def restore_hint(commit_ts: int, table: str = "") -> str:
    """Return the hint to restore the moment before a commit, of one table (full name) or all."""
    of = f" --table {shlex.quote(table)}" if table else ""
    return (
        "restore the moment before it beside what is there, and take the rows from it: `sluice"
        f" restore --until before:{commit_ts}{of}`"
    )
