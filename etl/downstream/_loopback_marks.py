"""Mark what a session writes, for the pipeline or Drainer that reads it on the other side."""

from __future__ import annotations

from collections.abc import Collection

from sluice.etl.changes import server_errors
from sluice.etl.changes.mark_table import (
    CREATE_MARK_TABLE,
    FIND_MARK_TABLE,
    MARK_NAME,
    mark_statement,
)
from sluice.etl.downstream._connection import DownstreamError, RunQuery

_CDC_SOURCE = "tidb_cdc_write_source"
_SHOW_CDC_SOURCE = "SHOW SESSION VARIABLES LIKE 'tidb_cdc_write_source'"
_CDC_SOURCES = range(1, 16)
"""The values that TiDB's tidb_cdc_write_source may have, beside 0 for none."""


class SessionMarks:
    """Write the marks of one session's transactions."""

    def __init__(self, query: RunQuery, channel: int) -> None:
        """Mark with `channel` what has no other."""
        self._query = query
        self._channel = channel
        self._cdc_source: int | None = None
        """What the session has in TiDB's variable; None: it isn't set."""

    def prepare(self, address: str, *, is_tidb: bool, others: Collection[int] = ()) -> None:
        """Make the mark table unless it is there.

        A TiDB of 6.5 or newer is told, too, that what comes is replicated: a TiCDC on the other
        side leaves that out. `others`: channels beside the session's that marks may have. Raises
        DownstreamError.
        """
        if self._query(FIND_MARK_TABLE) == [(0,)]:
            self._create(address)
        if is_tidb and not {self._channel, *others}.isdisjoint(_CDC_SOURCES):
            shown = self._query(_SHOW_CDC_SOURCE)
            if _CDC_SOURCE in dict(shown):  # not before 6.5
                self._cdc_source = 0
                self._set_source(self._channel)
        self._query("COMMIT")

    def mark(self, channel: int | None, row: int) -> None:
        """Mark the open transaction by a `row` of its channel, the session's own if it is None.

        Raises DownstreamError.
        """
        channel = self._channel if channel is None else channel
        # TiDB reads the variable at COMMIT
        self._set_source(channel)
        self._query(mark_statement(channel, row))

    def _set_source(self, channel: int) -> None:
        source = channel if channel in _CDC_SOURCES else 0
        if self._cdc_source is not None and self._cdc_source != source:
            self._query(f"SET SESSION {_CDC_SOURCE}={source}")
            self._cdc_source = source

    def _create(self, address: str) -> None:
        try:
            for statement in CREATE_MARK_TABLE:
                self._query(statement)
        except DownstreamError as error:
            if error.transient:
                raise
            statements = "; ".join(CREATE_MARK_TABLE)
            raise DownstreamError(
                server_errors.LACKS_PRIVILEGE,
                f"the table {MARK_NAME} of [downstream] loopback-control isn't on {address},"
                f" and can't be made: {error}",
                f"as a user with the right to: {statements}; GRANT SELECT, INSERT, UPDATE, DELETE"
                f" ON {MARK_NAME} TO the pipeline's user",
            ) from error
