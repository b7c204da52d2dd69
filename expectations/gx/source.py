"""Give Great Expectations data sources over an open session or a Spark frame.

A server is read over the very transaction whose snapshot `sluice.expectations.server_dataset`
holds: what SQLAlchemy commits and rolls back ends no transaction, and closing closes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pymysql.cursors
from great_expectations.core.batch_definition import BatchDefinition
from great_expectations.data_context import AbstractDataContext
from great_expectations.execution_engine import SparkDFExecutionEngine
from sqlalchemy.pool import StaticPool

if TYPE_CHECKING:
    from sluice.expectations.lake_dataset import LakeDataset
    from sluice.expectations.server_dataset import ServerDataset

__all__ = ["Batches", "ServerBatches", "SparkBatches"]

_DIALECT = "mysql+pymysql://"
_PLACEHOLDER = "`sluice table of this suite`"
"""Stands for the table until a statement is sent: GX changes `%`, `:` and capitals on the way."""


class Batches(Protocol):
    """Tables as Great Expectations has them."""

    def of(
        self, context: AbstractDataContext, name: str
    ) -> tuple[BatchDefinition[Any], dict[str, Any]]:
        """Return a table's rows, and the parameters to validate them with."""


class _BorrowedConnection:
    """Another owner's PyMySQL connection, in the middle of that owner's transaction."""

    def __init__(self, place: ServerDataset, table: str) -> None:
        """Create the borrowed connection.

        `table`: as it is written in a statement, in place of the placeholder.
        """
        self._place = place
        self._table = table
        self._connection = place.session.connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def cursor(
        self, cursor: type[pymysql.cursors.Cursor] = pymysql.cursors.Cursor
    ) -> pymysql.cursors.Cursor:
        """Return a cursor that sends its statements through `query`."""
        return cursor(self)  # type: ignore[arg-type] # it has all that a cursor uses

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:  # noqa: FBT001, FBT002 as PyMySQL's
        """Send a statement whose parameters are filled in."""
        text = sql.decode(errors="surrogateescape") if isinstance(sql, bytes) else sql
        text = text.replace(_PLACEHOLDER, self._table)
        return self._connection.query(text, unbuffered)

    def commit(self) -> None:
        self._place.release()

    rollback = commit

    def close(self) -> None:
        """Leave the connection open: its owner goes on using it."""


class ServerBatches:
    """Tables of a server's snapshot."""

    def __init__(self, place: ServerDataset) -> None:
        self._place = place

    def of(
        self, context: AbstractDataContext, name: str
    ) -> tuple[BatchDefinition[Any], dict[str, Any]]:
        """Return a table's rows."""
        self._place.shape(name)
        source: Any = context.data_sources.add_or_update_sql(
            name=name, connection_string=_DIALECT, create_temp_table=False,
            kwargs={"creator": lambda: _BorrowedConnection(self._place, self._place.table(name)),
            "poolclass": StaticPool},
        )  # fmt: skip
        asset = source.add_query_asset(name, query=f"SELECT * FROM {_PLACEHOLDER}")
        return asset.add_batch_definition_whole_table("all"), {}


class SparkBatches:
    """Tables of the past, as Spark frames."""

    def __init__(self, place: LakeDataset) -> None:
        self._place = place

    def of(
        self, context: AbstractDataContext, name: str
    ) -> tuple[BatchDefinition[Any], dict[str, Any]]:
        """Return a table's rows."""
        frame = self._place.frame(name)
        source: Any = context.data_sources.add_or_update_spark(name=name)
        source._execution_engine = SparkDFExecutionEngine(spark=self._place.spark, persist=False)
        asset = source.add_dataframe_asset(name)
        return asset.add_batch_definition_whole_dataframe("all"), {"dataframe": frame}


def no_rows(context: AbstractDataContext, name: str) -> tuple[BatchDefinition[Any], dict[str, Any]]:
    """Return a batch without rows, for suites that aren't about rows."""
    import pandas

    source: Any = context.data_sources.add_or_update_pandas(name=name)
    asset = source.add_dataframe_asset(name)
    return asset.add_batch_definition_whole_dataframe("all"), {
        "dataframe": pandas.DataFrame({"nothing": [0]})
    }
