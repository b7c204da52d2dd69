"""Ensure that this pipeline is the only one that writes to its downstream.

Two that write to the same tables end with different rows, and neither notices: what one replaces,
the other has replaced already. Two things reveal another writer. The checkpoint row: every row of
ours names its pipeline, so one that doesn't was written by another program. And the registry: a
Drainer is `online` there before it writes its first row. The registry doesn't show where a Drainer
writes to, so every one counts, unless the settings name it among the unrelated ones; other
pipelines' entries name their downstream.

What was seen while this pipeline was at work is kept beside the relay log, and only `sluice
takeover` lets it go on.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import replace

from sluice.errors import SluiceError
from sluice.etl.downstream import Checkpoint
from sluice.etl.downstream.ownership.pipeline import PipelineIdentity, writes_elsewhere
from sluice.etl.settings import Upstream
from sluice.relay import Ownership, RelayError, RelayLog, StopMark
from sluice.tidb import EtcdClient, EtcdError, NodeStatus, Registry, RegistryError
from sluice.tidb.tso import to_datetime

__all__ = [
    "OtherWriterError",
    "RegistryUnknownError",
    "WriterExclusivity",
    "describe_drainer",
    "other_writers",
]

log = logging.getLogger("sluice.apply")

_CHECK_INTERVAL_S = 1.0
_ETCD_TIMEOUT_S = 3.0
_WRITING_STATES = ("online", "pausing", "closing")


class OtherWriterError(SluiceError):
    """Another process writes to the downstream, or has; names it, and the ways out."""

    hint = "stop the other one, then `sluice takeover`"


class RegistryUnknownError(SluiceError, OSError):
    """The registry can't be asked, and going on without it isn't safe. Waiting may help."""

    transient = True
    hint = "bring the registry (etcd in PD) back"


def other_writers(
    pipeline: PipelineIdentity, unrelated: Collection[str], drainers: Iterable[NodeStatus]
) -> list[NodeStatus]:
    """Return the drainers that may be writing to the pipeline's downstream at this moment.

    `unrelated`: the node ids of those that operators have declared harmless.
    """
    return [
        drainer
        for drainer in drainers
        if drainer.state in _WRITING_STATES
        and drainer.node_id != pipeline.id
        and drainer.node_id not in unrelated
        and not writes_elsewhere(drainer, pipeline.downstream)
    ]


def describe_drainer(drainer: NodeStatus) -> str:
    """Describe a drainer as the registry shows it."""
    return (
        f"drainer {drainer.node_id} at {drainer.host} is {drainer.state} in the registry (last"
        f" heartbeat {to_datetime(drainer.update_ts):%Y-%m-%d %H:%M:%S} UTC)"
    )


class WriterExclusivity:
    """A thread that checks the registry and the relay log's stop every second, until closed."""

    def __init__(self, pipeline: PipelineIdentity, upstream: Upstream, relay: RelayLog) -> None:
        self._identity = pipeline
        self._unrelated = upstream.unrelated_drainers
        self._relay = relay
        self._where = pipeline.downstream
        self._other_writers: list[NodeStatus] = []
        self._unknown = ""
        self._stop: StopMark | None = None
        self._checkpoint = 0
        owned = relay.ownership()
        self._has_begun = owned is not None and owned.begun
        self.pipeline = owned.pipeline if owned else f"{pipeline.id}/{secrets.token_hex(4)}"
        """The owner that this pipeline's checkpoints name."""
        self._etcd = EtcdClient(
            upstream.pd_urls, tls=upstream.tls(), timeout_s=_ETCD_TIMEOUT_S, retries=False
        )
        self._stopped = threading.Event()
        self._check_registry()
        self._thread = threading.Thread(target=self._run, name="sole-writer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End looking."""
        self._stopped.set()
        self._etcd.close()
        self._thread.join(_ETCD_TIMEOUT_S)

    def check(self) -> None:
        """Raise OtherWriterError if another process writes or wrote and no operator agreed."""
        if self._stop is not None:
            raise OtherWriterError(self._stop.why)
        if self._other_writers:
            other = self._other_writers[0]
            why = (
                f"{describe_drainer(other)}, and may write to {self._where} as this pipeline does:"
                " two writers make"
                f" rows"
                " differ. If it replicates to another "
                "downstream, name it in sluice.toml: [upstream] unrelated-drainers ="
                f' ["{other.node_id}"]. If it is'
                f" gone: `sluice drainers offline {other.node_id} --gone`. Else stop it: `sluice"
                " drainers pause"
                f" {other.node_id}`"
            )
            if self._has_begun and other.update_ts > self._checkpoint:
                why = (
                    f"applying was stopped: {why}; then `sluice takeover` goes on. To leave the"
                    " downstream to the Drainer: `sluice handover --to-drainer`"
                )
                self._relay.stop(StopMark(why, _now_ms()))
            raise OtherWriterError(why)

    def set_position(self, commit_ts: int, *, wrote: bool) -> None:
        """Record that the checkpoint is at a TSO; `wrote`: this pipeline took it there."""
        self._checkpoint = commit_ts
        if wrote and not self._has_begun:
            owned = self._relay.own(Ownership(self.pipeline, self._where))
            self._relay.set_ownership(replace(owned, begun=True))
            self._has_begun = True

    def check_checkpoint(self, found: Checkpoint | None) -> None:
        """Check that this pipeline may go on from a checkpoint; None if there is no row.

        One that another program wrote is taken over when this pipeline has written nothing yet.
        Raises OtherWriterError and RegistryUnknownError.
        """
        self.check()
        owned = self._relay.ownership()
        place = (
            "there is no checkpoint" if found is None else f"the checkpoint is at {found.commit_ts}"
        )
        if owned is None:
            if found is not None and found.owner:
                raise OtherWriterError(
                    f"{self._where}: {place}, written by pipeline {found.owner}, whose relay log is"
                    f" another one than {self._relay.url}.",
                    hint=(
                        "stop that pipeline; if it is this one, with a new relay log, or its place"
                        " is to be taken: `sluice takeover`"
                    ),
                )
            if (
                found is not None
                and found.needs_safe_mode
                and not found.safe_until
                and self._unknown
            ):
                raise RegistryUnknownError(
                    f"{self._where}: {place}, left there by a Drainer, and whether it still runs"
                    f" can't be asked: {self._unknown}"
                )
            adopted = found.to_text() if found else None
            self.pipeline = self._relay.own(Ownership(self.pipeline, self._where, adopted)).pipeline
        elif owned.downstream != self._where:
            raise OtherWriterError(
                f"the relay log {self._relay.url} was applied to {owned.downstream} so far, and"
                f" sluice.toml now names {self._where}, where {place}.",
                hint=(
                    "if that is a mistake, correct [downstream] or [relay] url; if it is meant:"
                    " `sluice takeover`"
                ),
            )
        elif found is None and owned.begun:
            raise OtherWriterError(
                f"{self._where}: the checkpoint that this pipeline wrote is gone. Nothing was"
                " applied: all since the relay log's beginning would be applied again.",
                hint=(
                    "bring the row back; or, if the downstream was lost, make it a replica again"
                    " with `sluice bootstrap`; or, if it is to begin where the relay log begins:"
                    " `sluice takeover`"
                ),
            )
        elif (
            found is not None and found.owner != owned.pipeline and found.to_text() != owned.adopted
        ):
            by = f"pipeline {found.owner}" if found.owner else "a Drainer"
            raise OtherWriterError(
                f"{self._where}: {place}, and it was {by} that wrote it, not this pipeline: two"
                " that write to the same downstream make rows differ. Applying has not gone on.",
                hint="stop the other one, then `sluice takeover` goes on from there",
            )
        else:
            # another process may have begun it since this one looked
            self.pipeline = owned.pipeline

    def _run(self) -> None:
        while not self._stopped.wait(_CHECK_INTERVAL_S):
            self._check_registry()

    def _check_registry(self) -> None:
        with contextlib.suppress(RelayError, OSError):  # the reader of windows raises it
            self._stop = self._relay.stopped()
        try:
            self._other_writers = other_writers(
                self._identity, self._unrelated, Registry(self._etcd).drainers()
            )
            if self._unknown:
                log.info("the registry answers again: whether a Drainer runs is known")
            self._unknown = ""
        except (EtcdError, RegistryError, OSError) as error:
            if not self._unknown and not self._stopped.is_set():  # logged once, not every second
                log.warning(
                    "the registry does not answer whether a Drainer runs; until it does, only the"
                    " checkpoint shows another writer: %s",
                    error,
                )
            self._unknown = str(error) or type(error).__name__


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
