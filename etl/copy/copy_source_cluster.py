"""Use the upstream of a copy: its schema at the source's position, its pumps and the registry.

The pumps must still have what was committed since, and a place among the drainers makes them keep
it.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Self

from sluice.errors import SluiceError
from sluice.etl.copy.definitions import SourceSchema, read_source_schema
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.preconditions import check_binlogs_retained
from sluice.etl.downstream.ownership import (
    PipelineIdentity,
    RegistryHeartbeat,
    describe_drainer,
    other_writers,
)
from sluice.etl.landing import NoBinlogsError, pumps_to_read, server_without_binlogs
from sluice.etl.landing.planner import WindowPlanner
from sluice.etl.retry import RetryBackoff
from sluice.etl.settings import Upstream, Window
from sluice.tidb import EtcdClient, NodeStatus, PDClient, Registry, TiKVClient, tso

__all__ = ["SourceCluster"]

log = logging.getLogger("sluice.copy")

_REGISTRATION_TIMEOUT_S = 30.0
READY_TIMEOUT_S = 90.0
"""Time that a copy waits to know whether it may begin.

Nothing is lost by waiting, and by beginning again neither.
"""


class SourceCluster:
    """The cluster that the settings name."""

    def __init__(self, upstream: Upstream, stack: ExitStack) -> None:
        self._settings = upstream
        self.tls = tls = upstream.tls()
        self.pd = PDClient(upstream.pd_urls, tls=tls)
        stack.callback(self.pd.close)
        self.tikv = TiKVClient(self.pd, tls=tls)
        stack.callback(self.tikv.close)
        etcd = EtcdClient(upstream.pd_urls, tls=tls)
        stack.callback(etcd.close)
        self._etcd = etcd
        self.registry = Registry(etcd)

    @classmethod
    @contextmanager
    def connect(cls, upstream: Upstream) -> Iterator[Self]:
        with ExitStack() as stack:
            yield cls(upstream, stack)

    def definitions(self, ts: int) -> SourceSchema:
        """Return the schema at `ts`. Raises CopyError if there was none."""
        if ts > self.pd.tso():
            raise CopyError(
                f"the source is of {ts} ({tso.to_datetime(ts):%Y-%m-%d %H:%M:%S} UTC), which PD's"
                " clock has not reached: is it of another cluster?"
            )
        return read_source_schema(self.pd, self.tikv, ts, self._settings.new_collations)

    def problems(self, ts: int, pipeline: PipelineIdentity, window: Window) -> list[str]:
        """Return why the pipeline can't begin at `ts` in windows of at most that size.

        Raises CopyError, which is transient, if nothing lasting hinders it and that can't be known
        now.
        """
        found = [
            f"{describe_drainer(drainer)}, and may write to the same downstream: stop it first, or"
            " name it in [upstream] unrelated-drainers"
            for drainer in other_writers(
                pipeline, self._settings.unrelated_drainers, self.registry.drainers()
            )
        ]
        try:
            with closing(self.planner(window)) as planner:
                check_binlogs_retained(planner, ts)
        except CopyError as error:
            if error.transient and not found:
                raise
            found.append(str(error))
        except NoBinlogsError as error:
            found.append(
                f"{error}. Start such a pump with [capture] start-ts = {ts}: `sluice pump -capture`"
            )
        return found

    def wait_for_pump(self, wait_s: float = READY_TIMEOUT_S) -> None:
        """Wait for a pump that receives all commits from now on.

        One that captures has nothing of before its start. Raises CopyError after `wait_s` seconds.
        """
        waiting = RetryBackoff(log, "the copy")
        deadline = time.monotonic() + wait_s
        while True:
            why: SluiceError = CopyError(
                "no pump is in the registry", transient=True, hint="start one: `sluice pump`"
            )
            try:
                if any(pump.state != "offline" for pump in self._pumps()):
                    waiting.over()
                    return
            except NoBinlogsError as error:
                why = CopyError(
                    str(error), transient=True, hint="start such a pump: `sluice pump -capture`"
                )
            delay = waiting.after(why)
            if time.monotonic() + delay > deadline:
                raise why
            time.sleep(delay)

    def wait_until_ready(
        self, ts: int, pipeline: PipelineIdentity, window: Window, wait_s: float = READY_TIMEOUT_S
    ) -> list[str]:
        """Wait until `problems` can be decided: a pump starts, PD comes back; return them.

        Raises CopyError as `problems` after `wait_s` seconds.
        """
        waiting = RetryBackoff(log, "the copy")
        deadline = time.monotonic() + wait_s
        while True:
            try:
                found = self.problems(ts, pipeline, window)
            except CopyError as error:
                delay = waiting.after(error)
                if time.monotonic() + delay > deadline:
                    raise
                time.sleep(delay)
            else:
                waiting.over()
                return found

    def planner(self, window: Window) -> WindowPlanner:
        """Return a planner of windows of at most that size; the caller closes it."""

        return WindowPlanner(self.pd.cluster_id, window, self.pd.tso, self._pumps, self.tls)

    def _pumps(self) -> Sequence[NodeStatus]:
        server = server_without_binlogs(self._etcd)
        return pumps_to_read(self.registry.pumps(), server, self._settings.source)

    @contextmanager
    def registered(self, pipeline: PipelineIdentity, ts: int, window: Window) -> Iterator[None]:
        """Register that the pipeline needs what was committed since `ts`, also after this ends.

        Pumps keep it then. Raises CopyError if they have it no longer, if that can't be known, or
        if the registry could not be written.
        """
        entry = RegistryHeartbeat(pipeline, self.registry, self.tls, self.pd.tso, ts)
        try:
            deadline = time.monotonic() + _REGISTRATION_TIMEOUT_S
            while (pipeline.id, ts) not in {
                (one.node_id, one.max_commit_ts) for one in self.registry.drainers()
            }:
                if time.monotonic() > deadline:
                    raise CopyError(
                        f"the registry has no entry that {pipeline.id} needs what was"
                        f" committed since {ts}"
                    )
                time.sleep(0.05)
            # They are asked again now that they keep what is needed.
            if late := self.wait_until_ready(ts, pipeline, window):
                raise CopyError("\n".join(late))
            yield
        finally:
            entry.close()

    def unregister(self, pipeline: PipelineIdentity) -> None:
        """Register that the pipeline needs nothing more, if the registry has it.

        Raises EtcdError, RegistryError, PDError.
        """
        for drainer in self.registry.drainers():
            if drainer.node_id == pipeline.id:
                gone = NodeStatus(
                    pipeline.id, socket.gethostname(), "offline", label=pipeline.label,
                    max_commit_ts=drainer.max_commit_ts, update_ts=self.pd.tso(),
                )  # fmt: skip
                self.registry.update_drainer(gone)
