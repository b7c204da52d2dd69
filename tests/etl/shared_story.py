"""A story in which several transactions, and DDL, are committed at one timestamp."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from sluice.relay import PART_SCHEMA, Part, WindowRecord
from sluice.tidb.schema import Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story

_Held = tuple[list[tuple[Any, ...]], Mapping[int, Table], list[dict[str, Any]]]
"""Rows, their tables, and DDL of one call."""


class SharedStory(Story):
    """Put each transaction of a shared timestamp into its own part, as if from another pump."""

    def __init__(self, server: MariaDBServer, folder: Path, cluster_id: int = 7) -> None:
        self._held: list[_Held] | None = None
        super().__init__(server, folder, cluster_id)

    @contextmanager
    def together(self, *, again: bool = False) -> Iterator[None]:
        """Commit what is told inside at one timestamp, in one window.

        With `again` every transaction is in a second part, too, as when TiDB repeats a Prewrite on
        another pump.
        """
        held = self._held = []
        yield
        self._held = None
        last = self._relay.last()
        assert last is not None
        parts: list[Part] = []
        for rows, _, _ in [*held, *(held if again else ())]:
            shared = [(self._ts, *row[1:]) for row in rows]
            columns = (
                [pa.array(c, f.type) for c, f in zip(zip(*shared), PART_SCHEMA)] if shared else []
            )
            batches = [pa.RecordBatch.from_arrays(columns, schema=PART_SCHEMA)] if shared else []
            part = self._relay.write_part(last.hi, self._ts, "t", len(parts), batches)
            parts += [part] if part else []
        tables: dict[str, Any] = {}
        for _, described, _ in held:
            for table_id, table in described.items():
                tables.setdefault(str(table_id), table.to_json())
        made = {
            table_id for _, _, ddls in held for ddl in ddls for table_id in ddl["effect"]["tables"]
        }
        before = {i for _, described, _ in held for i in map(str, described)}
        count = sum(part.rows for part in parts)
        self._relay.commit(
            WindowRecord(
                last.hi, self._ts, self.cluster_id, "t", 0, len(held), count, self._version,
                tuple(parts),
                {i: table for i, table in tables.items() if i in before or i not in made},
                tuple(ddl | {"commit_ts": self._ts} for _, _, ddls in held for ddl in ddls),
            )
        )  # fmt: skip

    @property
    def now(self) -> int:
        """The last commit timestamp."""
        return self._ts

    def _window(
        self, rows: list[tuple[Any, ...]], tables: Mapping[int, Table], ddls: list[dict[str, Any]]
    ) -> None:
        if self._held is not None:
            self._held.append((rows, dict(tables), ddls))
        else:
            super()._window(rows, tables, ddls)
