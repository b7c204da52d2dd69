"""Rows of one table, and what changes made of them.

Nothing here depends on the order of rows, nor on any collation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from sluice.etl.history.as_of.row_bytes import row_bytes
from sluice.etl.history.as_of.versions import INEXACT_KINDS, TableVersion
from sluice.etl.history.errors import AsOfError
from sluice.tidb.codec.columnar import arrow_type
from sluice.tidb.schema import Column

PLACE_COLUMN = "place "
"""A changed image's place: twice the number of the change in its piece, and one more for a new
image. No name for a column in TiDB, which allows none that ends with a blank; nor is COMMIT_TS.
"""
COMMIT_TS_COLUMN = "commit ts "
_MAX_SHOWN_CHARS = 500


def apply_changes(version: TableVersion, rows: pa.Table, images: pa.Table) -> pa.Table:
    """Return `rows` after the changes whose images, in order, are `images`.

    These have the columns of the version, PLACE and COMMIT_TS. Raises AsOfError for a change that
    contradicts the rows.
    """
    if not images.num_rows:
        return rows
    return _by_key(version, rows, images) if version.key else _by_values(version, rows, images)


def empty_rows(version: TableVersion) -> pa.Table:
    """Return a table without rows."""
    return schema(version.columns).empty_table()


def schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of rows that hold these columns."""
    return pa.schema([pa.field(column.name, arrow_type(column)) for column in columns])


def _by_key(version: TableVersion, rows: pa.Table, images: pa.Table) -> pa.Table:
    there, changed = value_codes(version.key, rows, images)
    puts = images[PLACE_COLUMN].to_numpy() & 1 == 1
    if not version.lenient:
        _check_keys(version, rows, there)
        _check_changes(version, images, changed, puts, np.isin(changed, there))
    backwards = changed[::-1]
    touched, first = np.unique(backwards, return_index=True)
    last = len(changed) - 1 - first
    kept = np.flatnonzero(~np.isin(there, touched))
    come = np.sort(last[puts[last]])
    return _columns_together(version, rows.take(pa.array(kept)), images.take(pa.array(come)))


def _check_keys(version: TableVersion, rows: pa.Table, there: np.ndarray) -> None:
    values, counts = np.unique(there, return_counts=True)
    if (counts > 1).any():
        at = int(np.flatnonzero(there == values[counts > 1][0])[0])
        raise AsOfError(
            f"{version.table.full_name}: two rows have the key {_shown(version, rows, at)}"
        )


def _check_changes(
    version: TableVersion,
    images: pa.Table,
    changed: np.ndarray,
    puts: np.ndarray,
    is_there: np.ndarray,
) -> None:
    """Check changes; `is_there`: there is a row of the image's key before all changes."""
    order = np.argsort(changed, kind="stable")
    own, put = changed[order], puts[order]
    before = is_there[order]
    same = own[1:] == own[:-1]
    before[1:][same] = put[:-1][same]
    broken = np.flatnonzero(put == before)
    if len(broken):
        raise AsOfError(_contradiction(version, images, int(order[broken].min())))


def _contradiction(version: TableVersion, images: pa.Table, at: int) -> str:
    put = images[PLACE_COLUMN][at].as_py() & 1
    what = (
        "is written though there is one of its key"
        if put
        else "is changed or removed though there is none"
    )
    return (
        f"{version.table.full_name}: at commit_ts {images[COMMIT_TS_COLUMN][at].as_py()} a row"
        f" {what}: {_shown(version, images, at)}. The log, or the snapshot before it, isn't what"
        " the upstream was"
    )


def _shown(version: TableVersion, rows: pa.Table, at: int) -> str:
    return ", ".join(f"{c.name}={_text(rows[c.name][at])}" for c in version.identity)[
        :_MAX_SHOWN_CHARS
    ]


def _text(value: pa.Scalar) -> str:
    """Return the bytes as text, which needn't be utf-8."""
    plain = (
        value.cast(pa.large_binary()).as_py()
        if pa.types.is_large_string(value.type)
        else value.as_py()
    )
    return plain.decode("utf-8", "backslashreplace") if isinstance(plain, bytes) else repr(plain)


def _by_values(version: TableVersion, rows: pa.Table, images: pa.Table) -> pa.Table:
    """Apply images to a table without a key, where only the number of equal rows counts."""
    puts = images[PLACE_COLUMN].to_numpy() & 1 == 1
    pool = _columns_together(version, rows, images.filter(pa.array(puts)))
    removed = images.filter(pa.array(~puts))
    drop, done = np.zeros(pool.num_rows, bool), np.zeros(removed.num_rows, bool)
    for columns in _identifying_columns(version):
        left, wanted = np.flatnonzero(~drop), np.flatnonzero(~done)
        if not len(wanted):
            break
        there, gone = value_codes(
            columns, pool.take(pa.array(left)), removed.take(pa.array(wanted))
        )
        more, found = match_removed(there, gone)
        drop[left[more]] = True
        done[wanted[found]] = True
    if not done.all() and not version.lenient:
        raise AsOfError(_contradiction(version, removed, int(np.flatnonzero(~done)[0])))
    return pool.filter(pa.array(~drop))


def _identifying_columns(version: TableVersion) -> Iterator[list[Column]]:
    """Yield the column sets by which a row to remove is looked for, all columns first.

    While TiDB drops a column old images come without it. A column of which a snapshot has fewer
    digits identifies nothing.
    """
    yield version.identity
    staying = [column for column in version.identity if column.name not in version.leaving]
    if version.leaving:
        yield staying
    exact = [column for column in staying if column.kind not in INEXACT_KINDS]
    if len(exact) < len(staying):
        yield exact


def match_removed(there: np.ndarray, gone: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which of the rows go, and which of those to be removed were found."""
    count = int(max(there.max(initial=-1), gone.max(initial=-1))) + 1
    asked, present = np.bincount(gone, minlength=count), np.bincount(there, minlength=count)
    return _occurrence_numbers(there) < asked[there], _occurrence_numbers(gone) < present[gone]


def _occurrence_numbers(numbers: np.ndarray) -> np.ndarray:
    """Return for each number how often it occurred before, from 0."""
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers) if len(numbers) else np.zeros(0, np.int64)
    found = np.empty(len(numbers), np.int64)
    found[order] = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
    return found


def value_codes(
    columns: Sequence[Column], rows: pa.Table, images: pa.Table
) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers from 0, equal for equal values in these columns."""
    names = [column.name for column in columns]
    if not names:
        return np.zeros(rows.num_rows, np.int64), np.zeros(images.num_rows, np.int64)
    both = pa.concat_tables([rows.select(names), images.select(names)]).combine_chunks()
    arrays = {
        name: both[name].combine_chunks() if both.num_rows else pa.array([], both[name].type)
        for name in names
    }
    numbers = np.asarray(row_bytes(columns, arrays).dictionary_encode().indices).astype(np.int64)
    return numbers[: rows.num_rows], numbers[rows.num_rows :]


def _columns_together(version: TableVersion, rows: pa.Table, images: pa.Table) -> pa.Table:
    names = [column.name for column in version.columns]
    return pa.concat_tables([rows.select(names), images.select(names)]).combine_chunks()
