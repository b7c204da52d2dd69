"""Make ready to mark what a session writes, for the pipeline or Drainer of the other direction."""

from __future__ import annotations

from sluice.etl.changes import server_errors
from sluice.etl.changes.mark_table import CREATE_MARK_TABLE, FIND_MARK_TABLE, MARK_NAME
from sluice.etl.downstream._connection import DownstreamError, RunQuery

_CDC_SOURCE = "tidb_cdc_write_source"
_SHOW_CDC_SOURCE = "SHOW SESSION VARIABLES LIKE 'tidb_cdc_write_source'"
_CDC_SOURCES = range(1, 16)
"""The values that TiDB's tidb_cdc_write_source may have, beside 0 for none."""


def prepare_marks(query: RunQuery, channel: int, address: str, *, is_tidb: bool) -> None:
    """Make the mark table unless it is there.

    A TiDB of 6.5 or newer is told, too, that what comes is replicated: a TiCDC on the other side
    leaves that out. Raises DownstreamError.
    """
    if query(FIND_MARK_TABLE) == [(0,)]:
        _create(query, address)
    if is_tidb and channel in _CDC_SOURCES:
        shown = query(_SHOW_CDC_SOURCE)
        if _CDC_SOURCE in dict(shown):  # not before 6.5
            query(f"SET SESSION {_CDC_SOURCE} = {channel}")
    query("COMMIT")


def _create(query: RunQuery, address: str) -> None:
    try:
        for statement in CREATE_MARK_TABLE:
            query(statement)
    except DownstreamError as error:
        if error.transient:
            raise
        statements = "; ".join(CREATE_MARK_TABLE)
        raise DownstreamError(
            server_errors.LACKS_PRIVILEGE,
            f"the table {MARK_NAME} of [downstream] loopback-control isn't on {address},"
            f" and can't be made: {error}",
            f"as a user with the right to: {statements}; GRANT SELECT, INSERT, UPDATE, DELETE ON"
            f" {MARK_NAME} TO the pipeline's user",
        ) from error
