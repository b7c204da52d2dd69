"""Attach rows to a DDL step that survive the partition which the DDL drops downstream.

The step writes them behind its statement, in one transaction with the checkpoint; see
`sluice.etl.changes.planning._partition_moves`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from sluice.etl.changes.steps import LoadDetail, ScopedDdl, Step, SurvivingRows


def with_surviving_rows(ddl: Step, loads: Iterable[Step]) -> Step:
    """Return the DDL step with load steps inside."""
    loads = list(loads)
    if not loads:
        return ddl
    heads = tuple(
        SurvivingRows(
            s.schema, s.table, s.detail_of(LoadDetail), s.rows, s.commit_ts, len(s.payload)
        )
        for s in loads
    )
    payload = b"".join(bytes(s.payload) for s in loads)
    return replace(ddl, detail=replace(ddl.detail_of(ScopedDdl), kept=heads), payload=payload)


def surviving_rows_of(ddl: Step) -> Iterator[Step]:
    """Yield the load steps inside a DDL step."""
    at = 0
    data = bytes(ddl.payload)
    for head in ddl.detail_of(ScopedDdl).kept:
        payload = data[at : at + head.length]
        at += len(payload)
        yield Step(head.detail, head.commit_ts, head.schema, head.table, head.rows, 0, payload)
