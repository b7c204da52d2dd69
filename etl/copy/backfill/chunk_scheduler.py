"""Schedule aligned chunks (`sluice.relay.aligned_chunks`) for a job, and follow them to their end.

They are made a little ahead of PD's clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from sluice.etl.copy.backfill.downstream_session import BackfillDownstream
from sluice.etl.copy.errors import BackfillError
from sluice.etl.downstream.chunk_results import ChunkResult
from sluice.relay.aligned_chunks import (
    AlignedChunk,
    AlignedChunkExistsError,
    AlignedChunks,
    ChunkCancelled,
    ChunkReady,
    TableRepair,
)
from sluice.relay.jobs import JobRun
from sluice.tidb import tso

log = logging.getLogger("sluice.backfill")

_LEAD_MS = 300
_MAX_LEAD_MS = 20_000
_POLL_INTERVAL_S = 0.02
_SLOW_POLL_INTERVAL_S = 0.2
_SLOW_POLL_DELAY_S = 2.0

CANCELLED_BY_JOB = "job"


class AlignedChunkScheduler:
    """The aligned chunks of one job."""

    def __init__(
        self,
        aligned_chunks: AlignedChunks,
        job: str,
        now: Callable[[], int],
        downstream: BackfillDownstream,
    ) -> None:
        """Create the aligned chunk scheduler; `now`: fresh timestamps of PD."""
        self._aligned_chunks = aligned_chunks
        self._job = job
        self._now = now
        self._downstream = downstream
        self._lead_ms = _LEAD_MS

    def make(self, wanted: AlignedChunk) -> AlignedChunk:
        """Make the aligned chunk, at a timestamp that PD's clock has not reached.

        Raises BackfillError if none can be made in time, PDError, RelayError, OSError.
        """
        while True:
            made = replace(wanted, at_ts=self._now() + tso.span(self._lead_ms))
            try:
                self._aligned_chunks.make(made)
            except AlignedChunkExistsError:
                continue
            if self._now() < made.at_ts:
                return made
            self.give_up(made, "the aligned chunk came too late")
            self._aligned_chunks.remove(made.at_ts)
            self._lead_ms *= 2
            if self._lead_ms > _MAX_LEAD_MS:
                raise BackfillError(
                    "aligned chunks come too late: writing a file takes longer than"
                    f" {_MAX_LEAD_MS / 1000:g} s",
                    hint="see to the relay log's storage, then `sluice jobs resume`",
                )

    def wait_for(self, at_ts: int) -> None:
        """Return once PD's clock is past the timestamp."""
        while (now := self._now()) <= at_ts:
            time.sleep(min(max(tso.ms_between(now, at_ts), 1) / 1000, 1.0))

    def settle(self, made: AlignedChunk, ready: ChunkReady) -> ChunkReady | ChunkCancelled:
        """Settle a chunk whose rows are read; return what holds."""
        return self._aligned_chunks.settle(made.at_ts, ready)

    def give_up(self, made: AlignedChunk, why: str) -> bool:
        """Cancel a chunk.

        False if its rows are ready already, so that apply may write them.
        """
        return isinstance(
            self._aligned_chunks.settle(made.at_ts, ChunkCancelled(why, CANCELLED_BY_JOB)),
            ChunkCancelled,
        )

    def result(self, made: AlignedChunk, waiting: Callable[[float], None]) -> ChunkResult | None:
        """Return the result of a chunk whose rows are ready, None: nothing, and nothing will be.

        `waiting` is called with the seconds that it has waited; its exceptions are passed on.
        """
        began = time.monotonic()
        while True:
            found = self._downstream.result_of(self._job, made.at_ts)
            if found is None and self._downstream.is_past(made.at_ts):
                return self._downstream.result_of(self._job, made.at_ts)
            if found is not None:
                return found
            waited = time.monotonic() - began
            waiting(waited)
            time.sleep(_POLL_INTERVAL_S if waited < _SLOW_POLL_DELAY_S else _SLOW_POLL_INTERVAL_S)

    def remove(self, made: AlignedChunk) -> None:
        """Remove a chunk that is over."""
        self._aligned_chunks.remove(made.at_ts)

    def begin_repair(self, repair: TableRepair, run: JobRun) -> None:
        """Mark that rows are missing, which loosens what apply checks.

        A process that stood still until its job was over takes it back at once: no other process
        would, before the next job. Raises LeaseLostError, RelayError, OSError.
        """
        self._aligned_chunks.begin_repair(repair)
        run.look()
        if run.is_over:
            self._aligned_chunks.end_repair(repair.name)
        run.check()

    def orphaned(self) -> list[AlignedChunk]:
        """Return the chunks of an earlier process that apply may still write.

        The others are given up and removed.
        """
        found = []
        for made in self._aligned_chunks.of_job(self._job):
            if self.give_up(made, "the process that made it has ended"):
                self._aligned_chunks.remove(made.at_ts)
            else:
                found.append(made)
        return found
