"""Give tables as of a moment as frames in a session of the user's own."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Sequence
from typing import Any

from sluice.etl.history import as_of
from sluice.etl.history.as_of.frames import frames_in
from sluice.etl.spark.remote_workers import with_credentials
from sluice.relay.archive import Archive
from sluice.spark.query import ChangesError, settings_from
from sluice.tidb import moments, tso

__all__ = ["tables_as_of"]

_held = contextlib.ExitStack()
"""Holds on the archive: frames may be used as long as the session lasts."""
atexit.register(_held.close)


def tables_as_of(
    spark: Any, moment: str | int, tables: str | Sequence[str], **options: str
) -> dict[str, Any]:
    """Return tables as of a moment as DataFrames by ``schema.table``, typed as in the lake.

    `spark`: any session, classic or Connect. `moment`: as `sluice as-of` takes it, or a TSO.
    `tables`: names as of then, also with * and ?. `options`: those of the format ``sluice`` that
    name the pipeline (config, relay, archive).

    A table is computed when it is needed first, and kept in Spark's storage. What it is computed
    from stays in the archive until this process ends, for two days at most. Raises ChangesError
    where the archive doesn't reach the moment, AsOfError, relay errors.
    """
    ts = moments.parse_moment(str(moment))
    names = [tables] if isinstance(tables, str) else tables
    settings = settings_from(options)
    last = Archive.open(settings.archive_url).last()
    if last is None or last.hi < ts:
        through = f"through {tso.text(last.hi)}" if last is not None else "nothing"
        raise ChangesError(
            f"{settings.archive_url} has {through}: tables as of {tso.text(ts)} can't be had yet",
            hint="wait a minute for the DAG `archive`, or run `sluice archive run`",
        )
    past = as_of.tables_as_of(settings, ts, names)
    _held.enter_context(past.held())
    return frames_in(spark, past, with_credentials, [])
