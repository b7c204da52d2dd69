"""The accident at the end of `sluice run`: an operator forgets the WHERE of a DELETE in TiDB.

Replication does what it is there for. The archive has the rows: the moment is found, and the table
restored to right before it, beside the empty one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.devstack.bootstrap_demo import with_retries
from sluice.devstack.control import ClusterControl
from sluice.devstack.launch import StackPaths, connect
from sluice.devstack.progress_view import Observer
from sluice.devstack.state import StackError
from sluice.etl import load_settings
from sluice.etl.history.find import SearchQuery, SearchResults, search
from sluice.etl.history.snapshots import (
    SnapshotJobSummary,
    SnapshotRequest,
    create_snapshot,
    run_snapshot,
)
from sluice.etl.restore import RestoreRequest, RestoreSummary, create_or_resume, run_restore
from sluice.relay.jobs import Runner

_TRAFFIC = {"rate": 20, "transactions": 40, "rows": 2, "database": "sluice_load"}
_REQUESTER = "sluice run"


@dataclass(frozen=True, slots=True)
class Accident:
    """An accident: `rows` were in `table` (``schema.table``) until `commit_ts` (TSO)."""

    table: str
    rows: int
    commit_ts: int

    @property
    def restored(self) -> str:
        """Return the name under which the table is restored."""
        schema, _, name = self.table.partition(".")
        return f"{schema}_restored.{name}"


def make_snapshot(site: StackPaths, viewer: Observer) -> SnapshotJobSummary:
    """Make a snapshot of the whole replica at its checkpoint, by the job of `sluice snapshot make`.

    Raises as `sluice.etl.history.snapshots.run_snapshot`.
    """
    settings = load_settings(site.config)
    job = with_retries(
        viewer, lambda: create_snapshot(settings, SnapshotRequest("downstream"), _REQUESTER)
    )
    return with_retries(viewer, lambda: run_snapshot(settings, job.id, Runner(_REQUESTER)))


def delete_without_where(site: StackPaths, tables: Mapping[str, int]) -> Accident | None:
    """Run DELETE without WHERE on the largest of `tables` that suits, amid other traffic.

    `tables` are rows by name.
    A table suits that has a primary key, or has none and the stand-in can distinguish its rows.
    None if there is none.
    """
    control = ClusterControl(site.ports["cluster-control"])
    control.workload(_TRAFFIC)
    keyed = _with_key(site)
    for table in sorted(tables, key=lambda name: (name not in keyed, -tables[name])):
        with contextlib.suppress(StackError):
            commit_ts, rows = control.delete_everything(*table.split(".", 1))
            if rows:
                return Accident(table, rows, commit_ts)
    return None


def _with_key(site: StackPaths) -> set[str]:
    with contextlib.closing(connect(site)) as database, database.cursor() as cursor:
        cursor.execute(
            "SELECT CONCAT(TABLE_SCHEMA, '.', TABLE_NAME) FROM information_schema.TABLE_CONSTRAINTS"
            " WHERE CONSTRAINT_TYPE = 'PRIMARY KEY'"
        )
        return {str(name) for (name,) in cursor.fetchall()}


def find_accident(site: StackPaths, accident: Accident, since: int) -> SearchResults:
    """Return what `sluice find --kind delete --sort size` lists of the table.

    After `since` (TSO).
    """
    query = SearchQuery(since, 1 << 62, (accident.table,), ("delete",), order="size", limit=3)
    return search(load_settings(site.config), query)


def restore(site: StackPaths, viewer: Observer, table: str, commit_ts: int) -> RestoreSummary:
    """Restore the table as it was right before a commit.

    By the job that `sluice restore --until before:TSO` runs. Raises as
    `sluice.etl.restore.run_restore`.
    """
    settings, request = load_settings(site.config), RestoreRequest(commit_ts - 1, (table,))
    job = with_retries(viewer, lambda: create_or_resume(settings, request, _REQUESTER))
    return with_retries(
        viewer,
        lambda: run_restore(
            settings, job, Runner(_REQUESTER), on_progress=lambda p: viewer.show_copy(p, "restore")
        ),
    )


def wait_empty(site: StackPaths, table: str, timeout_s: float) -> None:
    """Wait until replication has emptied the table downstream. Raises StackError."""
    deadline = time.monotonic() + timeout_s
    while count(site, table):
        if time.monotonic() > deadline:
            raise StackError(f"{table} is still not empty downstream after {timeout_s:.0f} s")
        time.sleep(0.05)


def count(site: StackPaths, table: str) -> int:
    """Count the rows of a table of MariaDB."""
    schema, _, name = table.replace("`", "``").partition(".")
    with contextlib.closing(connect(site)) as database, database.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM `{schema}`.`{name}`")
        row = cursor.fetchone()
    assert row is not None
    return int(row[0])
