"""What is tried, one after the other, until the server takes a table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.table_fallbacks import Fallback, fallbacks, off_page_storage, with_server_computed
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.tidb.schema import Table

_STRICT_MODE = (
    "the table can be made all the same by a session that turns innodb_strict_mode off, which this user may not: grant"
    " it SESSION_VARIABLES_ADMIN"
)


def attempts(table: Table) -> Iterator[tuple[Fallback, bool]]:
    """Yield forms to be tried, and whether every row that a table might hold must fit into the server's pages: at last
    not all of them.
    """
    for form in fallbacks(table):
        yield form, True
    yield lambda made: off_page_storage(with_server_computed(made)), False


@contextlib.contextmanager
def allow_wide_rows(session: MySQLSession) -> Iterator[None]:
    """Have InnoDB take a table of hundreds of long columns; a row that doesn't fit will be refused by name when it
    comes. Raises DownstreamError, also where the session may not have that (MySQL).
    """
    session.query("SET SESSION innodb_strict_mode = OFF")
    try:
        yield
    finally:
        with contextlib.suppress(DownstreamError):
            session.query("SET SESSION innodb_strict_mode = ON")


def first_failure(errors: Sequence[DownstreamError]) -> DownstreamError:
    """Return the error to raise when each attempt failed: the first, with what the last one lacked."""
    first, last = errors[0], errors[-1]
    if first.code == server_errors.ROW_TOO_WIDE and last.code == server_errors.LACKS_PRIVILEGE:
        return DownstreamError(first.code, f"{first.message}; {_STRICT_MODE}")
    return first
