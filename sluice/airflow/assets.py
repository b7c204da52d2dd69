"""Assets for tables of a pipeline, which DAGs may be scheduled on."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.sdk import Asset

from sluice.tidb.table_name import TableName

__all__ = ["table_asset", "verified_asset"]

_UNNAMED = "sluice.toml"
"""Stands for the pipeline without a name; no pipeline's name has a dot."""


def table_asset(pipeline: str, table: str, **options: Any) -> Asset:
    """Return the asset ``sluice://<pipeline>/<schema>/<table>`` of the table ``schema.table``.

    `options`: as Airflow's Asset, such as `watchers`. Raises TableNameError, a ValueError.
    """
    parts = (quote(part, safe="") for part in TableName.parse(table))
    uri = "/".join((f"sluice://{pipeline or _UNNAMED}", *parts))
    return Asset(uri, **options)


def verified_asset(pipeline: str) -> Asset:
    """Return the asset ``sluice://<pipeline>/verified``, with an event for each comparison.

    An outlet of `SluiceVerifyOperator`. The event's ``extra`` has ``equal``, ``differences`` (rows,
    at least), ``unequal`` (names of tables), ``job``, and ``ts``, the checkpoint (TSO).
    """
    return Asset(f"sluice://{pipeline or _UNNAMED}/verified")
