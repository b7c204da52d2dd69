"""What a run of a verification knows so far, whatever it compares with: results, what is left out, notes, orders."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from errors import Signal
from etl.base.place import BasePlace
from etl.verify.differences import said_last
from etl.verify.kept import KeptResults
from etl.verify.result import TableResult
from etl.verify.rows_apart import Apart
from etl.verify.tables import LeftOut
from relay.jobs import Done, Job, Run
from upstream.schema import Table

__all__ = ["EXAMPLES", "Ordered", "Taking"]

EXAMPLES = 20
"""So many rows of a table are named."""
_SAID_LAST = 5
"""Of so many of them the log is asked what it says of the row."""
_SAVE_S = 2.0


class Ordered(Signal):
    """The job is to pause, or to be cancelled."""


class Taking:
    """Takes results as they come. `ts`: the checkpoint (TSO) at which is read now."""

    def __init__(self, place: BasePlace, job: Job, run: Run) -> None:
        self.place, self.run = place, run
        self._kept = KeptResults(place.relay.storage, job.id)
        self.results: dict[str, TableResult] = self._kept.load()
        self.left: dict[str, LeftOut] = {}
        self.notes: dict[str, None] = {}
        self.ts = 0
        self._saved = time.monotonic()

    def save(self) -> None:
        """Have whoever goes on with the job know the results."""
        self._kept.save(self.results)

    def take(self, result: TableResult) -> None:
        """A table is done."""
        self.results[result.name] = result
        if time.monotonic() - self._saved > _SAVE_S:
            self._saved = time.monotonic()
            self.save()

    def take_differing(self, result: TableResult, apart: Apart | None) -> None:
        """A table is done, and rows differ: with what the binlog says of them last."""
        if apart is not None:
            self._kept.keep(apart)
            self.run.doing(f"looking for what was written of {result.name} last")
            told = [
                one if one.binlog else said_last(self.place.settings, one, self.ts)
                for one in result.examples[:_SAID_LAST]
            ]
            result = replace(result, examples=(*told, *result.examples[_SAID_LAST:]))
        self.take(result)

    def take_merged(self, first: Table, others: Iterable[Table], result: TableResult) -> None:
        """The tables that are merged with a compared one are done with it."""
        for other in others:
            differs = result.differences or result.more
            self.take(
                TableResult(
                    other.full_name, result.downstream, self.ts,
                    problem=f"rows of {first.full_name}, with which it is merged, differ" if differs else "",
                    notes=() if differs else (f"compared together with {first.full_name}, as they are merged",),
                )
            )  # fmt: skip

    def leave_out(self, name: str, why: str) -> None:
        """A table isn't compared."""
        self.left[name] = LeftOut(name, why)

    def did(self, name: str, done: Done) -> None:
        """Progress."""
        self.run.did(name, done)
        self.run.doing(name)

    def doing(self, what: str) -> None:
        """What comes next. Raises Ordered, LeaseLostError."""
        self.check_order()
        self.run.doing(what)

    def go_on(self) -> bool:
        """Whether nothing was ordered. Raises LeaseLostError."""
        self.run.check()
        return self.run.order is None

    def check_order(self) -> None:
        """Raises Ordered, LeaseLostError."""
        if not self.go_on():
            raise Ordered
