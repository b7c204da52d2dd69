"""Pipelines between clusters (`tests.etl.two_clusters`), which run in threads until they end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sluice.etl.apply import run_apply
from sluice.etl.downstream.sinks import read_checkpoint
from sluice.etl.settings import Settings
from tests.etl.preparing import local_preparer
from tests.etl.tidb_stand_in import Seen
from tests.etl.two_clusters import Cluster

PATIENCE_S = 120


@dataclass
class Direction:
    """A pipeline from one cluster to another."""

    origin: Cluster
    target: Cluster
    settings: Settings
    run: threading.Event = field(default_factory=threading.Event)

    @property
    def checkpoint(self) -> int:
        found = read_checkpoint(self.settings.target, self.origin.cluster_id)
        return found.commit_ts if found is not None else 0


class RunningPipelines:
    """Pipelines that land and apply, and start again when they are killed."""

    def __init__(self, directions: Sequence[Direction]) -> None:
        self.directions = directions
        self.errors: list[BaseException] = []
        self._clusters = list({id(each.origin): each.origin for each in directions}.values())
        self._clusters += [
            each.target for each in directions if all(each.target is not c for c in self._clusters)
        ]
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._land)]
        self._threads += [
            threading.Thread(target=self._apply, args=(each,)) for each in self.directions
        ]
        for thread in self._threads:
            thread.start()

    def _land(self) -> None:
        while not self._stop.is_set():
            for cluster in self._clusters:
                cluster.land()
            time.sleep(0.03)

    def _apply(self, direction: Direction) -> None:
        while not self._stop.is_set():
            ends = direction.run = threading.Event()
            settings = direction.settings
            prepare = local_preparer(settings)
            try:
                run_apply(settings, stop=ends, run_seconds=PATIENCE_S, prepare=prepare)
            except BaseException as error:
                self.errors.append(error)
                return

    def kill(
        self, target: Cluster, seed: int, may_cut: Callable[[str], bool] = lambda statement: True
    ) -> None:
        """End what writes to `target` at some statement, and start it again."""
        chance = random.Random(seed)
        target.tidb.seen = Seen(cut=lambda statement: may_cut(statement) and chance.random() < 0.02)
        end = time.monotonic() + 2
        while not target.tidb.seen.is_cut and time.monotonic() < end:
            time.sleep(0.01)
        for each in self.directions:
            if each.target is target:
                each.run.set()
        time.sleep(0.05)
        target.tidb.seen = Seen()

    def failed(self, seconds: float) -> bool:
        """Return whether a pipeline stops with an error within this time."""
        end = time.monotonic() + seconds
        while not self.errors and time.monotonic() < end:
            time.sleep(0.02)
        return bool(self.errors)

    def wait_until_equal(self) -> None:
        """Wait until all that there is has gone all ways that it goes."""
        for _ in range(len(self._clusters) - 1):  # what is passed on is written anew each time
            for each in self.directions:
                through, end = each.origin.now(), time.monotonic() + PATIENCE_S
                while (at := each.checkpoint) < through:
                    assert not self.errors, self.errors
                    assert time.monotonic() < end, f"the checkpoint stays at {at}"
                    time.sleep(0.05)

    def end(self) -> None:
        """End the pipelines; clusters go on."""
        self._stop.set()
        for each in self.directions:
            each.run.set()
        for thread in self._threads:
            thread.join(30)
