"""Find the requested tables whose rows are unknown: what a restore refuses, and what it may ignore.

What a start lacks is asked of `sluice.etl.history.retain.promise`, by which the restorable range is
computed, too. The lineage knows more of what is asked for by name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sluice.etl.changes.rules import Filter
from sluice.etl.restore.emptied_tables import emptied_tables
from sluice.etl.restore.lineage import RestoreGroup, TableLineage
from sluice.etl.restore.sources import RestoreSources
from sluice.tidb import tso
from sluice.tidb.schema import Table
from sluice.tidb.table_name import abbreviate, fits

__all__ = ["RequestedTables"]


@dataclass(frozen=True, slots=True)
class RequestedTables:
    """The tables of a request, and what is unknown of them.

    `without_rows`: ids of tables of which no row is left. `made`: those of them that the start
    doesn't hold, as they were there; DDL needs them. `lost`: the names of tables that prevent the
    restore; `notes` name what it doesn't bring.
    """

    family: RestoreGroup
    without_rows: frozenset[int]
    made: tuple[Table, ...]
    lost: tuple[str, ...]
    notes: tuple[str, ...]

    @classmethod
    def find(
        cls,
        lineage: TableLineage,
        past: RestoreSources,
        globs: Sequence[str],
        filters: Filter,
        decided: Collection[int] = (),
    ) -> RequestedTables:
        """Find them; `decided`: commit timestamps (TSO) of DDL that operators overrode."""
        unwanted = _unwanted(lineage, filters) if not globs else {}
        family = lineage.family(globs, without=unwanted)
        without_rows = emptied_tables(family, decided)
        unknown = family.ids & lineage.unknown.keys()
        lost = {lineage.unknown[i].full_name for i in unknown - without_rows}
        promised = past.lacking(lineage)
        lost |= {
            name
            for i, name in promised.items()
            if (not globs or any(fits(name, glob) for glob in globs))
            and ((table := lineage.now.get(i)) is None or table.is_base_table)
        }
        made = (lineage.unknown[i] for i in sorted(unknown & without_rows))
        return cls(
            family,
            without_rows,
            tuple(table for table in made if table.is_base_table),
            tuple(sorted(lost)),
            tuple(_notes(past, sorted(unwanted.values()), is_all=not globs)),
        )

    def problem(self, past: RestoreSources) -> str:
        """Return why the lost tables prevent the restore, "" if there are none."""
        if not self.lost:
            return ""
        where = (
            f"the snapshot {past.snapshot.id} doesn't hold them"
            if past.snapshot
            else "there is no snapshot"
        )
        return (
            f"{abbreviate(self.lost)}: there before {tso.text(past.since)}, and {where},"
            " so their rows are unknown: leave them out with --table, or make a snapshot"
            " (`sluice snapshot make`) and take a moment after it"
        )


def _unwanted(lineage: TableLineage, filters: Filter) -> dict[int, str]:
    """Return the unknown tables that the settings leave out: no snapshot need hold them."""
    return {
        i: lineage.now[i].full_name
        for i in lineage.unknown
        if i in lineage.now
        and not filters.wants_table(lineage.now[i].schema_name, lineage.now[i].name)
    }


def _notes(past: RestoreSources, left_out: Sequence[str], *, is_all: bool) -> list[str]:
    found = []
    if left_out:
        found.append(
            f"{abbreviate(left_out)}: not restored, as [filter] leaves them out and no snapshot"
            " holds their rows"
        )
    if is_all and past.snapshot is None and past.since:
        found.append(
            f"without a snapshot: tables that were there before {tso.text(past.since)} and weren't"
            " changed since are in no record, and aren't restored"
        )
    return found
