"""Compute the values of columns whose change of type made TiDB rewrite every row.

They are in no binlog. The rules are `sluice.tidb.conversion`; what it refuses stays unknown, and
reading the table fails.
"""

from __future__ import annotations

import datetime

from sluice.tidb.codec.column_value import from_datum, to_datum
from sluice.tidb.codec.datum import NIL, Datum, decode_datum
from sluice.tidb.conversion import ConversionSession, convert
from sluice.tidb.ddl_actions import Action
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.schema import Column, Table
from sluice.tidb.time_zone import find_zone
from sluice.tidb.tso import to_datetime

_CHANGES = {Action.MODIFY_COLUMN, Action.MULTI_SCHEMA_CHANGE}


def rewritten_columns(job: DdlHistoryJob, old: Table, new: Table) -> list[tuple[Column, Column]]:
    """Return the old and the new definition of each column that the job converts."""
    if job.type not in _CHANGES or "ADD COLUMN" in job.query.upper():
        return []
    gone = [
        c for c in old.columns if c.public and c.id not in {n.id for n in new.columns if n.public}
    ]
    came = [
        c for c in new.columns if c.public and c.id not in {o.id for o in old.columns if o.public}
    ]
    pairs = []
    for column in came:
        namesake = next((c for c in gone if c.name.lower() == column.name.lower()), None)
        source = namesake or (gone[0] if len(gone) == len(came) == 1 else None)
        if source is not None:
            pairs.append((source, column))
    return pairs


def converted(datum: Datum, source: Column, target: Column, job: DdlHistoryJob) -> Datum:
    """Return the value that a row got. ConversionError, a ValueError, where it isn't known."""
    if datum.flag == NIL:
        return datum
    value = datum.value if source.kind in ("enum", "set") else from_datum(source, datum)
    began = to_datetime(job.start_ts) if job.start_ts else None
    ended = to_datetime(job.finished_ts) if job.start_ts else None
    session = ConversionSession(job.sql_mode, _zone(job.time_zone), job.time_zone, began, ended)
    (found,) = convert([value], source, target, session).to_pylist()
    return decode_datum(to_datum(target, found))[0]


def _zone(name: str) -> datetime.tzinfo:
    return datetime.UTC if name in ("", "UTC", "Local") else find_zone(name)
