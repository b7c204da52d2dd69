"""The copies of `sluice run`.

It begins with one: the stand-in cluster already works, MariaDB is empty, and a bootstrap from
TiDB's SQL port makes it a replica as of then. Towards the end it copies a table again that was
damaged.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

import pymysql

from sluice.devstack.control import ClusterControl
from sluice.devstack.launch import LOOPBACK, StackPaths
from sluice.devstack.progress_view import Observer
from sluice.devstack.replay import is_sent
from sluice.devstack.state import StackError
from sluice.errors import SluiceError
from sluice.etl import load_settings
from sluice.etl.copy import BootstrapRequest, BootstrapSummary, run_bootstrap
from sluice.etl.copy.backfill import BackfillRequest, BackfillSummary, create_backfill, run_backfill
from sluice.relay.jobs import Runner

_COMMIT_WAIT_TIMEOUT_S = 600.0
T = TypeVar("T")


def read_ahead(site: StackPaths) -> None:
    """Make the stand-in's SQL port read the recording before traffic begins."""
    tidb = pymysql.connect(
        host=LOOPBACK, port=site.ports["cluster-sql"], user="root", read_timeout=60
    )
    with contextlib.closing(tidb), tidb.cursor() as cursor:
        cursor.execute("SHOW DATABASES")


def wait_committed(site: StackPaths, count: int) -> int:
    """Wait until the stand-in cluster has committed `count` transactions, or all it is going to.

    How many it has. Raises StackError when it failed, or doesn't get there.
    """
    control = ClusterControl(site.ports["cluster-control"])
    deadline = time.monotonic() + _COMMIT_WAIT_TIMEOUT_S
    while True:
        committed = int(control.status()["counts"].get("committed", 0))
        if committed >= count or is_sent(control):
            return committed
        if time.monotonic() > deadline:
            raise StackError(
                f"the stand-in cluster committed {committed} of {count} transactions in"
                f" {_COMMIT_WAIT_TIMEOUT_S:.0f} s"
            )
        time.sleep(0.05)


def copy_now(site: StackPaths, viewer: Observer) -> BootstrapSummary:
    """Bootstrap the downstream from TiDB as it is now.

    By the job that `sluice bootstrap --from tidb://` runs. Raises as
    `sluice.etl.copy.run_bootstrap`.
    """
    settings, request = load_settings(site.config), BootstrapRequest("tidb://", by="sluice run")
    return with_retries(
        viewer,
        lambda: run_bootstrap(settings, request, on_progress=lambda p: viewer.show_copy(p, "copy")),
    )


def copy_again(site: StackPaths, viewer: Observer, table: str) -> BackfillSummary:
    """Make a damaged table whole, by the job that `sluice backfill --table TABLE` runs.

    Raises as `sluice.etl.copy.backfill.run_backfill`.
    """
    settings = load_settings(site.config)
    job = with_retries(
        viewer, lambda: create_backfill(settings, BackfillRequest((table,)), "sluice run")
    )
    return with_retries(viewer, lambda: run_backfill(settings, job.id, Runner("sluice run")))


def with_retries(viewer: Observer, act: Callable[[], T]) -> T:
    """Do it, and again after what passes: the job goes on with what is left."""
    deadline = time.monotonic() + _COMMIT_WAIT_TIMEOUT_S
    while True:
        try:
            return act()
        except SluiceError as error:
            if not error.transient or time.monotonic() > deadline:
                raise
            viewer.report(f"{error}: trying again")
        time.sleep(1)
