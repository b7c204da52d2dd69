"""List rows that differ: their key, either side's values, and their last change in the binlog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from sluice.errors import SluiceError
from sluice.etl.history.find import FoundTransaction, SearchQuery, TimeBudget, recent_page
from sluice.etl.history.history_log import HistoryLog
from sluice.etl.settings import Settings
from sluice.etl.verify.endpoint import CHANGED, EXTRA, MISSING, Difference
from sluice.etl.verify.row_diff import RowDiff, key_of, keys_bytes
from sluice.relay import WindowRecord
from sluice.tidb import tso
from sluice.tidb.table_name import exactly

__all__ = ["differences_of", "last_in_binlog"]

_SEARCH_TIME_BUDGET_S = 3.0
"""Time for reading the log backwards for a row."""


def differences_of(found: RowDiff, most: int) -> list[Difference]:
    """Return the first `most` rows that differ, ordered by key as far as it is bytes."""
    names = [column.name for column in key_of(found.table)]
    return _keyed_differences(found, names, most) if names else _counted_differences(found, most)


def _keyed_differences(found: RowDiff, names: Sequence[str], most: int) -> list[Difference]:
    ours, theirs = (
        dict(zip(keys_bytes(found.table, side), range(side.num_rows), strict=True))
        for side in (found.come, found.gone)
    )
    differences = []
    for key in sorted(ours.keys() | theirs.keys())[:most]:
        up = _row(found.come, ours[key]) if key in ours else None
        down = _row(found.gone, theirs[key]) if key in theirs else None
        kind = (
            CHANGED if up is not None and down is not None else MISSING if up is not None else EXTRA
        )
        row = up if up is not None else down
        assert row is not None
        differences.append(
            Difference(found.table.full_name, kind, {name: row[name] for name in names}, up, down)
        )
    return differences


def _counted_differences(found: RowDiff, most: int) -> list[Difference]:
    """Return the differences of a table without a key.

    Equal rows are one difference, counted by how often they are there too often.
    """
    differences = []
    for kind, side in ((MISSING, found.come), (EXTRA, found.gone)):
        rows = Counter(tuple(row.items()) for row in _rows(side, most))
        for items, times in rows.items():
            row = dict(items)
            up, down = (row, None) if kind == MISSING else (None, row)
            differences.append(Difference(found.table.full_name, kind, row, up, down, times))
    return differences[:most]


def _rows(side: pa.Table, most: int) -> Iterator[dict[str, Any]]:
    return (_row(side, number) for number in range(min(side.num_rows, most)))


def _row(side: pa.Table, number: int) -> dict[str, Any]:
    return {name: _value(side[name], number) for name in side.column_names}


def _value(column: pa.ChunkedArray, number: int) -> Any:
    if column.type != pa.large_string():
        return column[number].as_py()
    raw = column.slice(number, 1).cast(pa.large_binary())[0].as_py()
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError:
        return raw


def last_in_binlog(settings: Settings, difference: Difference, until: int) -> Difference:
    """Add the row's last change in the binlog through `until` (TSO).

    The search goes back for a few seconds. A failure is no error.
    """
    if difference.key == (difference.upstream or difference.downstream):
        return difference  # no key identifies it
    try:
        past = HistoryLog.open(settings, shows_values=False)
        name = exactly(difference.table)
        query = SearchQuery(
            past.first,
            until,
            (name,),
            ("insert", "update", "delete"),
            key=_key_text(difference.key),
            limit=1,
        )
        look = recent_page(past, query, TimeBudget(_SEARCH_TIME_BUDGET_S))
        last = next((one for one in look.found if isinstance(one, FoundTransaction)), None)
        if last is None:
            reached = (
                f"since {tso.text(look.through)}"
                if look.through > past.first
                else "in what is kept of it"
            )
            return replace(difference, binlog=f"nothing of this row {reached}")
        window = settings.open_relay().find(last.commit_ts - 1)
        return difference.said_last(_change_text(last), last.commit_ts, _window(window))
    except (SluiceError, OSError) as error:
        return replace(difference, binlog=f"not known: {error}")


def _key_text(key: Mapping[str, Any]) -> str:
    return ", ".join(
        f"0x{value.hex()}"
        if isinstance(value, bytes)
        else "'" + str(value).replace("'", "''") + "'"
        for value in key.values()
    )


def _change_text(last: FoundTransaction) -> str:
    kinds = [
        word
        for word in ("inserts", "updates", "deletes")
        if any(getattr(table, word) for table in last.tables)
    ]  # fmt: skip
    done = " and ".join(
        {"inserts": "inserted", "updates": "updated", "deletes": "deleted"}[word] for word in kinds
    )
    return (
        f"{done or 'changed'} by the transaction that was committed at {tso.text(last.commit_ts)}"
    )


def _window(window: WindowRecord | None) -> str:
    return f"({window.lo}, {window.hi}]" if window is not None else ""
