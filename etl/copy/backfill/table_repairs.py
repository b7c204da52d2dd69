"""Keep the tables of a backfill under repair until their rows are there (`TableRepair`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sluice.etl.copy.backfill.chunk_scheduler import AlignedChunkScheduler
from sluice.etl.copy.backfill.plan import BackfillTablePlan
from sluice.etl.copy.backfill.progress_state import BackfillTableState
from sluice.relay.aligned_chunks import COMPARE, AlignedChunks, TableRepair
from sluice.relay.jobs import JobRun

__all__ = ["TableRepairs", "end_repairs"]


class TableRepairs:
    """The repairs of one job; none where it only compares (`mode` COMPARE)."""

    def __init__(
        self,
        job: str,
        mode: str,
        aligned_chunks: AlignedChunks,
        scheduler: AlignedChunkScheduler,
        run: JobRun,
    ) -> None:
        self._job = job
        self._mode = mode
        self._aligned_chunks = aligned_chunks
        self._scheduler = scheduler
        self._run = run

    def begin_all(
        self, plans: Sequence[BackfillTablePlan], states: Sequence[BackfillTableState]
    ) -> None:
        """Mark every table that is not done as under repair, before waiting for the apply process.

        Applying may have stopped at any of them, and the first aligned chunk waits for applying.
        """
        for plan, state in zip(plans, states, strict=True):
            if not state.is_over:
                self.begin(plan)

    def begin(self, plan: BackfillTablePlan, table_id: int = 0) -> None:
        """Begin a table's repair; `table_id` if it has another id than when it was planned."""
        if self._mode != COMPARE:
            name = self._name(plan) + (f".{table_id}" if table_id else "")
            repair = TableRepair(name, self._job, (table_id or plan.table_id,))
            self._scheduler.begin_repair(repair, self._run)

    def end(self, plan: BackfillTablePlan) -> None:
        """End the repairs of a table that is done, under all its ids."""
        name = self._name(plan)
        for repair in self._aligned_chunks.repairs():
            if repair.name == name or repair.name.startswith(f"{name}."):
                self._aligned_chunks.end_repair(repair.name)

    def _name(self, plan: BackfillTablePlan) -> str:
        return f"{self._job}.{plan.table_id}"


def end_repairs(aligned_chunks: AlignedChunks, job: str) -> Iterator[str]:
    """End the repairs of a job that is given up: changes to its tables are checked again.

    Yields the names of its repairs.
    """
    for repair in aligned_chunks.repairs():
        if repair.job == job:
            aligned_chunks.end_repair(repair.name)
            yield repair.name
