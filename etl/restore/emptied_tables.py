"""Find tables of which no row is left at the moment.

DDL between needs them, so they are made, and stay empty.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sluice.etl.restore.errors import RestoreError
from sluice.etl.restore.lineage import RestoreGroup
from sluice.etl.restore.plan import RestorePlan
from sluice.etl.settings import Settings
from sluice.relay.archive import Archive

__all__ = ["check_overrides", "emptied_tables", "overridden_commits"]


def overridden_commits(settings: Settings, after_ts: int, through_ts: int) -> set[int]:
    """Return the commit timestamps (TSO) that operators overrode, from relay log and archive.

    Raises relay errors, OSError.
    """
    relay = settings.open_relay()
    archived = Archive.open(settings.archive_url).overrides_of(relay.pipeline)
    return {
        one.commit_ts
        for log in (relay.overrides, archived)
        for one in log.list(after_ts, through_ts)
    }


def emptied_tables(family: RestoreGroup, decided: Collection[int]) -> frozenset[int]:
    """Return ids of tables whose rows the restore does not need.

    None where operators `decided` about a DDL (commit timestamps): an override changes what it does
    to rows, a TRUNCATE may have been skipped.
    """
    return frozenset() if any(ddl.commit_ts in decided for ddl in family.ddls) else family.gone


def check_overrides(plan: RestorePlan, decided: Iterable[int]) -> None:
    """Raise RestoreError if a DDL was overridden after tables had been left empty."""
    ddls = {int(ddl.split(" ", 1)[0]) for ddl in plan.ddls}
    if late := sorted(ddls.intersection(decided)) if plan.without_rows else []:
        raise RestoreError(
            f"an operator overrode the DDL at {', '.join(map(str, late))} after this restore was"
            " planned; the restore leaves out rows that this DDL removes, and the override may keep"
            " them",
            hint="give this restore up (`sluice jobs cancel`), and ask for it again",
        )
