"""The accident at the end of `sluice run`: somebody forgets the WHERE of a DELETE in TiDB, and replication does what it
is there for. The past has the rows: the moment is found, and the table restored to right before it, beside the empty
one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

from embedded.control import ClusterControl
from embedded.copies import persistently
from embedded.launch import Site, connect
from embedded.state import StackError
from embedded.viewer import Viewer
from etl import load_settings
from etl.base import BaseSummary, BaseWish, create_base, run_base
from etl.find import Found, Query, find
from etl.restore import Request, RestoreSummary, ask_for, run_restore
from relay.jobs import Runner

_TRAFFIC = {"rate": 20, "transactions": 40, "rows": 2, "database": "sluice_load"}
_BY = "sluice run"


@dataclass(frozen=True, slots=True)
class Accident:
    """`rows` were in `table` (``schema.table``) until `commit_ts` (TSO)."""

    table: str
    rows: int
    commit_ts: int

    @property
    def restored(self) -> str:
        """Where the table is restored."""
        schema, _, name = self.table.partition(".")
        return f"{schema}_restored.{name}"


def make_base(site: Site, viewer: Viewer) -> BaseSummary:
    """All tables as they are in the replica at its checkpoint, by the job that `sluice base make` runs. Raises as
    `etl.base.run_base`.
    """
    settings = load_settings(site.config)
    job = persistently(viewer, lambda: create_base(settings, BaseWish("downstream"), _BY))
    return persistently(viewer, lambda: run_base(settings, job.id, Runner(_BY)))


def have_one(site: Site, tables: Mapping[str, int]) -> Accident | None:
    """DELETE without WHERE from the largest of `tables` (rows by name) that has a primary key, or has none, and that
    the stand-in can tell the rows of; amid other traffic. None if there is none.
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


def _with_key(site: Site) -> set[str]:
    with contextlib.closing(connect(site)) as database, database.cursor() as cursor:
        cursor.execute(
            "SELECT CONCAT(TABLE_SCHEMA, '.', TABLE_NAME) FROM information_schema.TABLE_CONSTRAINTS WHERE"
            " CONSTRAINT_TYPE = 'PRIMARY KEY'"
        )
        return {str(name) for (name,) in cursor.fetchall()}


def find_it(site: Site, accident: Accident, since: int) -> Found:
    """What `sluice find --kind delete --sort size` lists of the table after `since` (TSO)."""
    query = Query(since, 1 << 62, (accident.table,), ("delete",), order="size", limit=3)
    return find(load_settings(site.config), query)


def restore(site: Site, viewer: Viewer, table: str, commit_ts: int) -> RestoreSummary:
    """The table as it was right before a commit, by the job that `sluice restore --until before:TSO` runs. Raises as
    `etl.restore.run_restore`.
    """
    settings, request = load_settings(site.config), Request(commit_ts - 1, (table,))
    job = persistently(viewer, lambda: ask_for(settings, request, _BY))
    return persistently(
        viewer,
        lambda: run_restore(settings, job, Runner(_BY), on_progress=lambda p: viewer.show_copy(p, "restore")),
    )


def wait_empty(site: Site, table: str, timeout_s: float) -> None:
    """Wait until replication has emptied the table downstream. Raises StackError."""
    deadline = time.monotonic() + timeout_s
    while count(site, table):
        if time.monotonic() > deadline:
            raise StackError(f"{table} is still not empty downstream after {timeout_s:.0f} s")
        time.sleep(0.05)


def count(site: Site, table: str) -> int:
    """How many rows a table of MariaDB has."""
    schema, _, name = table.replace("`", "``").partition(".")
    with contextlib.closing(connect(site)) as database, database.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM `{schema}`.`{name}`")
        row = cursor.fetchone()
    assert row is not None
    return int(row[0])
