"""Check that the history knows a search's table names: a mistyped one would find nothing."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.etl.changes.planning import WindowPayload
from sluice.etl.changes.rules import Filter, is_internal_table, only_tables
from sluice.etl.history.errors import FindError
from sluice.etl.history.history_log import HistoryLog
from sluice.tidb import tso
from sluice.tidb.id_maps import names_by_id
from sluice.tidb.table_name import full_name, suggestion

__all__ = ["check_table_globs"]


def check_table_globs(past: HistoryLog, globs: Sequence[str]) -> None:
    """Raise FindError for a glob that fits no table with rows or DDL in the history.

    Raises relay errors. Reads the records of windows until each glob fits one.
    """
    left = {glob: only_tables(Filter(), (glob,)) for glob in globs}
    known = set[str]()
    for stretch in past.ranges(past.first, past.last):
        for window in stretch.windows():
            if not left:
                return
            schema = WindowPayload.from_window(window).schema
            for tables in (schema.tables, *(ddl.effect.tables for ddl in schema.ddls)):
                for table_id, schema_name, name in names_by_id(tables):
                    if is_internal_table(table_id):
                        continue
                    known.add(full_name(schema_name, name))
                    left = {
                        glob: one
                        for glob, one in left.items()
                        if not one.wants_table(schema_name, name)
                    }
    for glob in left:
        raise FindError(
            f"no table {glob} has rows or DDL in what was committed after"
            f" {tso.time_text(past.first)} through {tso.time_text(past.last)}"
            f"{suggestion(glob, known)}",
            hint="name it schema.table, * and ? stand for others",
        )
