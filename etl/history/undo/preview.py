"""Show rows before and after: what an undo does with the first ones of each table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.changes.write_plans.net_effect import unchanged_rows
from sluice.etl.changes.write_plans.raw_changes import image_count
from sluice.etl.history.find import row_text
from sluice.etl.history.undo.inverse import InverseChanges


@dataclass(frozen=True, slots=True)
class RowPreview:
    """A row that an undo touches: as it is `now`, and what it becomes; empty where it is gone.

    `effect`: inserts, deletes or updates.
    """

    table: str
    effect: str
    now: str
    then: str


def preview(reverse: InverseChanges, limit: int) -> Iterator[RowPreview]:
    """Yield the first rows of each effect on a table, at most `limit` of each.

    An updated row shows its key, and the columns that change.
    """
    table = reverse.touched.then
    name = reverse.touched.now.full_name
    columns = [column.name for column in table.stored_columns]
    for row in range(min(limit, image_count(reverse.again))):
        yield RowPreview(name, "inserts", "", row_text(reverse.again, columns, row))
    for row in range(min(limit, image_count(reverse.left))):
        yield RowPreview(name, "deletes", row_text(reverse.left, columns, row), "")
    rows = np.arange(min(limit, image_count(reverse.after)))
    changed = {
        column: ~unchanged_rows([reverse.after[column]], [reverse.before[column]], rows, rows)
        for column in columns
    }
    key = [column.name for column in lookup_key_columns(table)]
    for row in rows.tolist():
        shown = dict.fromkeys([*key, *(column for column in columns if changed[column][row])])
        now, then = (row_text(images, shown, row) for images in (reverse.after, reverse.before))
        yield RowPreview(name, "updates", now, then)
