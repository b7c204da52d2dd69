"""The copies of `sluice run`. It begins with one: the stand-in cluster already works, MariaDB is empty, and a bootstrap
from TiDB's SQL port makes it a replica as of then. Towards the end it copies a table again that was damaged.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

import pymysql

from embedded.control import ClusterControl
from embedded.launch import LOOPBACK, Site
from embedded.replay import is_sent
from embedded.state import StackError
from embedded.viewer import Viewer
from errors import SluiceError
from etl import load_settings
from etl.backfill import BackfillRequest, BackfillSummary, create_backfill, run_backfill
from etl.copy import BootstrapSummary, BootstrapWish, run_bootstrap
from relay.jobs import Runner

_PATIENCE_S = 600.0
T = TypeVar("T")


def read_ahead(site: Site) -> None:
    """Have the stand-in's SQL port read the recording before traffic begins."""
    tidb = pymysql.connect(host=LOOPBACK, port=site.ports["cluster-sql"], user="root", read_timeout=60)
    with contextlib.closing(tidb), tidb.cursor() as cursor:
        cursor.execute("SHOW DATABASES")


def wait_committed(site: Site, count: int) -> int:
    """Wait until the stand-in cluster has committed `count` transactions, or all it is going to; how many it has.
    Raises StackError when it failed, or doesn't get there.
    """
    control = ClusterControl(site.ports["cluster-control"])
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        committed = int(control.status()["counts"].get("committed", 0))
        if committed >= count or is_sent(control):
            return committed
        if time.monotonic() > deadline:
            raise StackError(
                f"the stand-in cluster committed {committed} of {count} transactions in {_PATIENCE_S:.0f} s"
            )
        time.sleep(0.05)


def copy_now(site: Site, viewer: Viewer) -> BootstrapSummary:
    """Bootstrap the downstream from TiDB as it is now, by the job that `sluice bootstrap --from tidb://` runs. Raises
    as `etl.copy.run_bootstrap`.
    """
    settings, wish = load_settings(site.config), BootstrapWish("tidb://", by="sluice run")
    return persistently(
        viewer, lambda: run_bootstrap(settings, wish, on_progress=lambda p: viewer.show_copy(p, "copy"))
    )


def copy_again(site: Site, viewer: Viewer, table: str) -> BackfillSummary:
    """Make a damaged table whole, by the job that `sluice backfill --table TABLE` runs. Raises as
    `etl.backfill.run_backfill`.
    """
    settings = load_settings(site.config)
    job = persistently(viewer, lambda: create_backfill(settings, BackfillRequest((table,)), "sluice run"))
    return persistently(viewer, lambda: run_backfill(settings, job.id, Runner("sluice run")))


def persistently(viewer: Viewer, act: Callable[[], T]) -> T:
    """Do it, and again after what passes: the job goes on with what is left."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return act()
        except SluiceError as error:
            if not error.transient or time.monotonic() > deadline:
                raise
            viewer.report(f"{error}: trying again")
        time.sleep(1)
