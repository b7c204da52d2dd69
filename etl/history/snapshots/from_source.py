"""Write a snapshot of a source's rows, group of chunks by group, by several Spark jobs.

The jobs run side by side. A finished group is noted in the snapshot's folder, so the next process
of the job does what is left.

    <archive>/snapshots/<id>/done/<first chunk's number>.json    by chunk, its files
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from sluice.etl.changes.rules.landed_masks import LandedMasks
from sluice.etl.history.snapshots.chunk_writer import (
    MakeFiles,
    WrittenFiles,
    chunk_order,
    parse_written,
)
from sluice.etl.history.snapshots.plan import SnapshotPlan
from sluice.relay.storage import Storage

__all__ = ["SourceRowsWriter"]

GROUP_BYTES = 32 << 20
_MAX_GROUP_CHUNKS = 100
_NAME = re.compile(r"(\d+)\.json\Z")


class SourceRowsWriter:
    """The rows of a plan. Every method raises OSError."""

    def __init__(
        self,
        plan: SnapshotPlan,
        storage: Storage,
        group_bytes: int = GROUP_BYTES,
        masks: LandedMasks | None = None,
    ) -> None:
        """Take a plan; `masks`: those of its tables' rows, which the plan describes as masked."""
        self._plan = plan
        self._masks = masks
        self._group_bytes = group_bytes
        self._storage = storage
        self._folder = f"snapshots/{plan.snapshot}"

    def written(self) -> WrittenFiles:
        """Load what is written already."""
        found: WrittenFiles = {}
        for name in self._storage.names(f"{self._folder}/done"):
            if _NAME.match(name):
                found |= parse_written(
                    json.loads(self._storage.read(f"{self._folder}/done/{name}"))
                )
        return found

    def write(
        self, make: MakeFiles, at_once: int, done: WrittenFiles, go_on: Callable[[], bool]
    ) -> Iterator[WrittenFiles]:
        """Write what isn't `done`, `at_once` groups at a time; yield each when it is noted.

        None is begun once `go_on()` is false. Raises what `make` raises.
        """
        groups = iter(self._groups(done))
        with ThreadPoolExecutor(at_once, thread_name_prefix="snapshot") as pool:
            running: set[Future[list[str]]] = set()
            try:
                while True:
                    while (
                        len(running) < at_once
                        and go_on()
                        and (group := next(groups, None)) is not None
                    ):
                        running.add(pool.submit(make, self._orders(group)))
                    if not running:
                        return
                    ended, running = wait(running, return_when=FIRST_COMPLETED)
                    for each in ended:
                        yield self._record_written(each.result())
            finally:
                for each in running:
                    each.cancel()

    def _record_written(self, texts: list[str]) -> WrittenFiles:
        found = parse_written(texts)
        self._storage.replace(
            f"{self._folder}/done/{min(found)}.json", json.dumps(texts).encode() + b"\n"
        )
        return found

    def _orders(self, group: Sequence[int]) -> list[str]:
        tables = self._plan.definitions()
        if self._masks is not None:
            tables = {name: self._masks.shaped(table) for name, table in tables.items()}
        chunks = [(number, self._plan.chunks[number]) for number in group]
        return [
            chunk_order(
                n, chunk, tables[chunk.full_name], f"{self._folder}/{tables[chunk.full_name].id}"
            )
            for n, chunk in chunks
        ]

    def _groups(self, done: WrittenFiles) -> Iterator[list[int]]:
        """Yield chunks that aren't done, small ones together."""
        group: list[int] = []
        size = 0
        for number, chunk in enumerate(self._plan.chunks):
            if number in done:
                continue
            group.append(number)
            size += chunk.bytes
            if size >= self._group_bytes or len(group) >= _MAX_GROUP_CHUNKS:
                yield group
                group, size = [], 0
        if group:
            yield group
