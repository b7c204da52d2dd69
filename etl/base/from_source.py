"""The rows of a source become a base's, group of chunks by group of chunks, by several Spark jobs side by side.

What a group has become is noted in the base's folder, so whoever goes on with the job does what is left.

    <archive>/bases/<id>/done/<first chunk's number>.json    by chunk, its files
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from etl.base.chunk_writer import MakeFiles, Written, order_of, written_of
from etl.base.plan import BasePlan
from relay.storage import Storage

__all__ = ["SourceRows"]

GROUP_BYTES = 32 << 20
_MOST_CHUNKS = 100
_NAME = re.compile(r"(\d+)\.json\Z")


class SourceRows:
    """The rows of a plan. Every method raises OSError."""

    def __init__(self, plan: BasePlan, storage: Storage, group_bytes: int = GROUP_BYTES) -> None:
        self._plan = plan
        self._group_bytes = group_bytes
        self._storage = storage
        self._folder = f"bases/{plan.base}"

    def written(self) -> Written:
        """What is done already."""
        found: Written = {}
        for name in self._storage.names(f"{self._folder}/done"):
            if _NAME.match(name):
                found |= written_of(json.loads(self._storage.read(f"{self._folder}/done/{name}")))
        return found

    def write(self, make: MakeFiles, at_once: int, done: Written, go_on: Callable[[], bool]) -> Iterator[Written]:
        """Write what isn't `done`, so many groups at once; they come as they are noted. None is begun once `go_on()` is
        false. Raises what `make` raises.
        """
        groups = iter(self._groups(done))
        with ThreadPoolExecutor(at_once, thread_name_prefix="base") as pool:
            running: set[Future[list[str]]] = set()
            try:
                while True:
                    while len(running) < at_once and go_on() and (group := next(groups, None)) is not None:
                        running.add(pool.submit(make, self._orders(group)))
                    if not running:
                        return
                    ended, running = wait(running, return_when=FIRST_COMPLETED)
                    for each in ended:
                        yield self._noted(each.result())
            finally:
                for each in running:
                    each.cancel()

    def _noted(self, texts: list[str]) -> Written:
        found = written_of(texts)
        self._storage.replace(f"{self._folder}/done/{min(found)}.json", json.dumps(texts).encode() + b"\n")
        return found

    def _orders(self, group: Sequence[int]) -> list[str]:
        tables = self._plan.definitions()
        chunks = [(number, self._plan.chunks[number]) for number in group]
        return [
            order_of(n, chunk, tables[chunk.full_name], f"{self._folder}/{tables[chunk.full_name].id}")
            for n, chunk in chunks
        ]

    def _groups(self, done: Written) -> Iterator[list[int]]:
        """Chunks that aren't done, small ones together."""
        group: list[int] = []
        size = 0
        for number, chunk in enumerate(self._plan.chunks):
            if number in done:
                continue
            group.append(number)
            size += chunk.bytes
            if size >= self._group_bytes or len(group) >= _MOST_CHUNKS:
                yield group
                group, size = [], 0
        if group:
            yield group
