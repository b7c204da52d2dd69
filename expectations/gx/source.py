"""Great Expectations' own data sources, over a session or Spark frame that is there already.

A server is read over the very transaction whose snapshot `expectations.server_place` holds: what SQLAlchemy commits and
rolls back ends no transaction, and closing closes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import sqlalchemy
from great_expectations.core.batch_definition import BatchDefinition
from great_expectations.data_context import AbstractDataContext
from great_expectations.execution_engine import SparkDFExecutionEngine

if TYPE_CHECKING:
    from expectations.lake_place import LakePlace
    from expectations.server_place import ServerPlace

__all__ = ["Batches", "ServerBatches", "SparkBatches"]

_DIALECT = "mysql+pymysql://"


class Batches(Protocol):
    """Tables as Great Expectations has them."""

    def of(self, context: AbstractDataContext, name: str) -> tuple[BatchDefinition[Any], dict[str, Any]]:
        """A table's rows, and the parameters to validate them with."""


class _Borrowed:
    """A PyMySQL connection that belongs to somebody else, in the middle of a transaction of theirs."""

    def __init__(self, place: ServerPlace) -> None:
        self._place = place
        self._connection = place.session.connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        self._place.let_go()

    rollback = commit

    def close(self) -> None:
        """It goes on being used."""


class ServerBatches:
    """Tables of a server's snapshot."""

    def __init__(self, place: ServerPlace) -> None:
        self._place = place

    def of(self, context: AbstractDataContext, name: str) -> tuple[BatchDefinition[Any], dict[str, Any]]:
        """A table's rows."""
        self._place.shape(name)
        source: Any = context.data_sources.add_or_update_sql(
            name=name, connection_string=_DIALECT, create_temp_table=False,
            kwargs={"creator": lambda: _Borrowed(self._place), "poolclass": sqlalchemy.pool.StaticPool},
        )  # fmt: skip
        # As a query, since for a table GX lowers the schema's letters and leaves names as they are.
        query = f"SELECT * FROM {self._place.table(name)}".replace(":", r"\:")
        asset = source.add_query_asset(name, query=query)
        return asset.add_batch_definition_whole_table("all"), {}


class SparkBatches:
    """Tables of the past, as Spark frames."""

    def __init__(self, place: LakePlace) -> None:
        self._place = place

    def of(self, context: AbstractDataContext, name: str) -> tuple[BatchDefinition[Any], dict[str, Any]]:
        """A table's rows."""
        frame = self._place.frame(name)
        source: Any = context.data_sources.add_or_update_spark(name=name)
        source._execution_engine = SparkDFExecutionEngine(spark=self._place.spark, persist=False)
        asset = source.add_dataframe_asset(name)
        return asset.add_batch_definition_whole_dataframe("all"), {"dataframe": frame}


def no_rows(context: AbstractDataContext, name: str) -> tuple[BatchDefinition[Any], dict[str, Any]]:
    """For suites that aren't about rows."""
    import pandas

    source: Any = context.data_sources.add_or_update_pandas(name=name)
    asset = source.add_dataframe_asset(name)
    return asset.add_batch_definition_whole_dataframe("all"), {"dataframe": pandas.DataFrame({"nothing": [0]})}
