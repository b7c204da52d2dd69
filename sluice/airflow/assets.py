"""Assets for tables of a pipeline, which DAGs may be scheduled on."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.sdk import Asset

__all__ = ["table_asset"]

_UNNAMED = "sluice.toml"
"""Stands for the pipeline without a name; no pipeline's name has a dot."""


def table_asset(pipeline: str, table: str, **options: Any) -> Asset:
    """Return the asset ``sluice://<pipeline>/<schema>/<table>`` of the table ``schema.table``.

    `options`: as Airflow's Asset, such as `watchers`. Raises ValueError for a table without a
    schema.
    """
    schema, dot, name = table.partition(".")
    if not (schema and dot and name):
        raise ValueError(f"table {table!r}: schema.table expected")
    uri = f"sluice://{pipeline or _UNNAMED}/{quote(schema, safe='')}/{quote(name, safe='')}"
    return Asset(uri, **options)
