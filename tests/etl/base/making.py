"""Bases made in a test's process."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from threading import Lock
from typing import Any

from etl.base.chunk_writer import MakeFiles, write_chunk
from etl.base.request import DOWNSTREAM, BaseWish
from etl.base.run import BaseSummary, create_base, run_base
from etl.copy.base_source import BaseSource
from etl.copy.sources import open_source
from etl.settings import Settings
from relay.archive import Archive, Base
from relay.jobs import Job, Runner
from tests.etl.base.recorded_rows import counted
from upstream.schema import Table


def here(settings: Settings, job: Job, then: Callable[[int], None] = lambda _: None) -> MakeFiles:
    """As Spark's workers write; `then` is called with how many orders were begun before."""
    plan = job.plan()
    assert plan is not None
    source, storage = open_source(plan["spec"]), Archive.open(settings.archive_url).storage
    # Two groups are written at a time: each order takes a number of its own.
    number, taking = count(), Lock()

    def make(orders: Sequence[str]) -> list[str]:
        said = []
        for order in orders:
            with taking:
                begun = next(number)
            then(begun)
            said.append(write_chunk(source, storage, json.loads(order)))
        return said

    return make


def made(settings: Settings, wish: BaseWish) -> tuple[BaseSummary, Base]:
    """Make a base; how that went, and the base."""
    job = create_base(settings, wish, "test")
    make = None if (job.plan() or {})["spec"] == {"kind": DOWNSTREAM} else here(settings, job)
    summary = run_base(settings, job.id, Runner("test"), make=make)
    return summary, Archive.open(settings.archive_url).bases.get(summary.base)


def rows_of(settings: Settings, base: Base, name: str) -> Counter[tuple[Any, ...]]:
    """A table's rows, text as its bytes."""
    source = BaseSource.of(settings.archive_url, base)
    table = Table.from_json(next(one.table for one in base.tables if one.full_name == name))
    found: Counter[tuple[Any, ...]] = Counter()
    for chunk in source.chunks(table):
        for batch in source.read(chunk, table):
            found += counted(batch)
    return found
