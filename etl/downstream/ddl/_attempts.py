"""Try forms of a table one after the other, until the server accepts one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.table_fallbacks import (
    Fallback,
    fallbacks,
    off_page_storage,
    with_server_computed,
)
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.tidb.schema import Table

_STRICT_MODE = (
    "the table can be made all the same by a session that turns innodb_strict_mode off, which this"
    " user may not: grant it SESSION_VARIABLES_ADMIN"
)

Plan = Callable[[Fallback], tuple[list[str], list[str]]]
"""Builds, for one form, the statements and the warnings about what they leave out."""


def execute_first_accepted(
    session: MySQLSession, table: Table, plan: Plan, execute: Callable[[str], list[str]]
) -> tuple[Table, list[str], DownstreamError | None]:
    """Execute the statements of the first form that the server accepts.

    Returns the table in that form, warnings, and why the server rejected the first form if it did.
    `execute` runs one statement and returns warnings. Raises DownstreamError.
    """
    rejected: list[DownstreamError] = []
    tried: list[tuple[list[str], bool]] = []
    for form, within in _attempts(table):
        statements, warnings = plan(form)
        if (statements, within) in tried:
            continue
        tried.append((statements, within))
        try:
            with contextlib.nullcontext() if within else _allow_wide_rows(session):
                for statement in statements:
                    warnings += execute(statement)
        except DownstreamError as error:
            # No form helps where a table of that name exists: the caller decides.
            if error.transient or error.code == server_errors.TABLE_EXISTS:
                raise
            rejected.append(error)
            continue
        return form(table), warnings, rejected[0] if rejected else None
    raise _first_failure(rejected)


def _attempts(table: Table) -> Iterator[tuple[Fallback, bool]]:
    """Yield forms, and whether every row that a table might hold must fit into a server's page.

    The last form gives that up.
    """
    for form in fallbacks(table):
        yield form, True
    yield lambda made: off_page_storage(with_server_computed(made)), False


@contextlib.contextmanager
def _allow_wide_rows(session: MySQLSession) -> Iterator[None]:
    """Make InnoDB accept a table of hundreds of long columns.

    The server rejects a row that doesn't fit when the row comes, by name. Raises DownstreamError,
    also where the session lacks the privilege (MySQL).
    """
    session.query("SET SESSION innodb_strict_mode = OFF")
    try:
        yield
    finally:
        with contextlib.suppress(DownstreamError):
            session.query("SET SESSION innodb_strict_mode = ON")


def _first_failure(errors: Sequence[DownstreamError]) -> DownstreamError:
    """Return the error to raise when each attempt failed: the first, with what the last lacked."""
    first, last = errors[0], errors[-1]
    if first.code == server_errors.ROW_TOO_WIDE and last.code == server_errors.LACKS_PRIVILEGE:
        return DownstreamError(first.code, f"{first.message}; {_STRICT_MODE}")
    return first
