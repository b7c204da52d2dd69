"""Set the session up for a DDL statement: no backslash escapes, and the upstream's clock.

CURRENT_TIMESTAMP as the value of existing rows depends on that clock. Where a mode without escapes
would change what expressions of tables mean, the statements' backslashes are doubled in its place.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from sluice.etl.changes.formats.ddl_columns import added_columns
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.downstream.ddl._conversions import conversions
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column

_CURRENT_TIME = "CURRENT_TIMESTAMP"


@contextlib.contextmanager
def ddl_session(session: MySQLSession, ddl: DdlJob | None = None) -> Iterator[None]:
    """Set the session up for one DDL job, or for statements of our own around one, and back."""
    mode = str(session.query("SELECT @@SESSION.sql_mode")[0][0])
    # TiDB rounds what a change of type cuts off a time; MariaDB does so only in this mode.
    rounding = ",TIME_ROUND_FRACTIONAL" if session.dialect.rounds_time_by_mode else ""
    escapes = session.dialect.reads_expressions_by_mode
    if not escapes:
        session.query(
            f"SET SESSION sql_mode = CONCAT(@@SESSION.sql_mode, ',NO_BACKSLASH_ESCAPES{rounding}')"
        )
    doubled, session.doubles_backslashes = session.doubles_backslashes, escapes
    try:
        moment = _current_timestamp(ddl) if ddl is not None else ""
        if moment:
            # Existing rows get the default of the moment at which TiDB added the column.
            session.query("SET SESSION timestamp = UNIX_TIMESTAMP(%s)", (moment,))
        if session.dialect.is_tidb and ddl is not None and conversions(ddl):
            # It converts by itself, in its session's time zone.
            session.query("SET SESSION time_zone = %s", (ddl.time_zone or "+00:00",))
        yield
    finally:
        session.doubles_backslashes = doubled
        # a lost connection has no session to be put right
        with contextlib.suppress(DownstreamError):
            session.query(
                "SET SESSION timestamp = DEFAULT, time_zone = '+00:00', sql_mode = %s", (mode,)
            )


def _current_timestamp(ddl: DdlJob) -> str:
    """Return the value that CURRENT_TIMESTAMP had for existing rows when a column was added.

    It is as TiDB noted it; "" if it didn't.
    """
    for _, column in added_columns(ddl):
        if _is_current_time(column) and re.match(r"\d{4}-\d\d-\d\d ", str(column.origin_default)):
            return str(column.origin_default)
    return ""


def _is_current_time(column: Column) -> bool:
    return isinstance(column.default, str) and column.default.upper().startswith(_CURRENT_TIME)
