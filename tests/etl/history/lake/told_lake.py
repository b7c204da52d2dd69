"""Write a lake row by row: tables of a story, their changes, as segments of one window each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from sluice.etl.history.lake import BUFFER_BYTES, LakeWriter, write_lake
from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE, RelayLog, WindowRecord, iter_parts
from sluice.relay.archive import LakeFile
from sluice.relay.storage import Storage, open_storage
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Table
from sluice.tidb.tso import from_datetime

Row = dict[str, Any]


class ToldLake:
    """An archive with nothing but a lake, below a folder.

    `moment` (a datetime) is when the next window begins.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "archive"
        self.folder.mkdir(parents=True)
        self.storage: Storage = open_storage(f"file://{self.folder}")
        self._relay = RelayLog.open(f"file://{folder}/relay")
        self._windows: list[WindowRecord] = []

    def changes(
        self,
        moment: Any,
        table: Table,
        changes: Sequence[tuple[Row | None, Row | None]],
        version: int = 7,
        raw: Sequence[bytes] = (),
        together: bool = False,
    ) -> tuple[LakeFile, ...]:
        """One window and segment: a transaction a millisecond for each (old row, new row), None for
        none, or one with all of them; `raw` inserted rows follow as they are.
        """
        lo = from_datetime(moment)
        step = 0 if together else 1
        rows = []
        for number, (old, new) in enumerate(changes, 1):
            kind, row = (
                (INSERT, encode_insert(table, new)) if old is None and new is not None
                else (DELETE, encode_delete(table, old)) if new is None and old is not None
                else (UPDATE, encode_update(table, old or {}, new or {}))
            )  # fmt: skip
            rows.append((kind, row))
        rows += [(INSERT, data) for data in raw]
        hi = lo + (len(rows) + 1 << 18)
        batch = pa.RecordBatch.from_pylist(
            [
                {
                    "commit_ts": lo + (1 + step * (number - 1) << 18),
                    "start_ts": lo + (1 + step * (number - 1) << 18) - 1,
                    "position": number * (1 - step),
                    "table_id": table.id,
                    "schema_version": version,
                    "kind": kind,
                    "row": row,
                }
                for number, (kind, row) in enumerate(rows, 1)
            ],
            PART_SCHEMA,
        )
        part = self._relay.write_part(lo, hi, "told", 0, [batch])
        tables = {str(table.id): table.to_json()}
        window = WindowRecord(
            lo, hi, 7, "told", 0, len(rows), len(rows), version, (part,) if part else (), tables
        )
        self._windows.append(window)
        return write_lake(
            self._relay.storage, self.storage, [window], f"t{len(self._windows)}", BUFFER_BYTES
        )

    def compacted(self) -> tuple[LakeFile, ...]:
        """All windows so far as one segment."""
        return write_lake(
            self._relay.storage, self.storage, self._windows, "compacted", BUFFER_BYTES
        )

    def fails(self) -> None:
        """All windows so far as one segment, which fails before its end."""
        with LakeWriter(
            self.storage, (self._windows[0].lo, self._windows[-1].hi), "fails", 1
        ) as writer:
            for window in self._windows:
                writer.add(window, iter_parts(self._relay.storage, window.parts))
            raise RuntimeError("before its end")
