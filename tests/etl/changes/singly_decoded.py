"""Every replicated change of a relay log by the row codec that decodes one row at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare_steps
from sluice.etl.changes.planning import _change_set_builder as prepare
from sluice.etl.changes.steps import Step
from sluice.etl.changes.write_plans import ChangeSet
from sluice.relay import UPDATE, RelayLog
from sluice.tidb.codec import row as scalar
from sluice.tidb.schema import Table

Row = dict[str, Any]
INSERT = 0


def decoded_singly(
    relay: RelayLog, monkeypatch: pytest.MonkeyPatch
) -> dict[int, list[tuple[Table, int, Row | None, Row | None]]]:
    """Every replicated change by the row codec that decodes one row at a time: (table, kind, old,
    new).
    """
    found: dict[int, list[tuple[int, Table, int, Row | None, Row | None]]] = {}

    def collect(segment: ChangeSet, timings: object, workers: int) -> Iterator[Step]:
        rows = segment.changes["row"].to_pylist()
        for table, places in segment.tables:
            names = [*(column.name for column in table.stored_columns), "_tidb_rowid"]
            columns = zip(
                *(segment.column(name, places) for name in ("commit_ts", "position", "kind")),
                places,
                strict=True,
            )
            for commit_ts, position, kind, place in columns:
                decode = (scalar.decode_insert, scalar.decode_update, scalar.decode_delete)[kind]
                values = decode(table, rows[place])
                images = (
                    values
                    if kind == UPDATE
                    else (None, values)
                    if kind == INSERT
                    else (values, None)
                )
                old, new = (
                    dict(zip(names, image, strict=False)) if image is not None else None
                    for image in images
                )
                found.setdefault(int(commit_ts), []).append(
                    (int(position), table, int(kind), old, new)
                )
        yield from ()

    with monkeypatch.context() as patch:
        patch.setattr(prepare, "planner_for", lambda name: collect)
        batch = BatchPayload.from_windows(relay.windows(0))
        for _ in prepare_steps(relay.url, batch, PrepareOptions()):
            pass
    return {
        ts: [change[1:] for change in sorted(changes, key=lambda c: c[0])]
        for ts, changes in found.items()
    }
