"""Parts: immutable Arrow IPC files of row changes.

A part holds whole transactions in PART_SCHEMA, in **commit order**: sorted by (commit_ts, start_ts,
position). Of what TiKV's change data has, several transactions may share a commit_ts. Buffers are
compressed with LZ4. Its descriptor, which the window record keeps, has the CRC-32C of the whole
file; readers check it before they decode.

What has gone into the archive is a part, too: its path names row groups of a log file, see
`sluice.relay.row_groups`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.relay.checksum_writer import ChecksumWriter, WriteOnlyFile
from sluice.relay.errors import RelayCorruptError, RelayError
from sluice.relay.part_descriptor import Part
from sluice.relay.row_groups import PART_SCHEMA, is_selection, read_row_groups
from sluice.relay.storage import Storage, open_storage

_READ_BYTES = 2**20
_WRITE_BUFFER_BYTES = 2**16
_ORDER = ("commit_ts", "start_ts", "position")
_Key = tuple[int, int, int]
_Ints = npt.NDArray[np.int64]
# One column has nearly all bytes, so threads would be woken for little, and a Spark worker has one
# core.
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


def write_part(storage: Storage, path: str, batches: Iterable[pa.RecordBatch]) -> Part | None:
    """Write a part; it is durable when this returns.

    None, and no file, if there are no rows.

    `batches` are in PART_SCHEMA, in commit order across all of them; a
    transaction may span batches. Raises RelayError if they aren't, FileExistsError if the path is
    taken, OSError if the disk refuses.
    """
    iterator = (batch for batch in batches if batch.num_rows)
    first = next(iterator, None)
    if first is None:
        return None
    rows = transactions = 0
    minimum = int(first["commit_ts"][0].as_py())
    last = (-1, -1, -1)
    with storage.new_file(path) as sink:
        counting = ChecksumWriter(sink)
        gathering = _BufferedWriter(counting)
        with pa.ipc.new_file(
            pa.PythonFile(gathering, mode="w"), PART_SCHEMA, options=_OPTIONS
        ) as writer:
            batch = first
            while batch is not None:
                if not batch.schema.equals(PART_SCHEMA):
                    raise RelayError(
                        f"{path}: a batch has the schema {batch.schema}, not that of a part"
                    )
                fresh, last = _check_order(batch, last, path)
                writer.write_batch(batch)
                rows += batch.num_rows
                transactions += fresh
                batch = next(iterator, None)
        gathering.pass_on()
    return Part(path, rows, transactions, counting.written, counting.crc32c, minimum, last[0])


class _BufferedWriter(WriteOnlyFile):
    """A buffer for what pyarrow writes to a part.

    A few rows come in thirty small pieces, which it passes on as one. pyarrow's own buffer won't
    do: if it is freed after an error, it may write its rest to a file that is closed.
    """

    def __init__(self, file: ChecksumWriter) -> None:
        self._file = file
        self._rest = bytearray()
        self._passed = 0

    def write(self, data: Any) -> int:
        size = len(data)
        if size >= _WRITE_BUFFER_BYTES:
            self.pass_on()
            self._passed += size
            self._file.write(data)
            return size
        self._rest += data
        if len(self._rest) >= _WRITE_BUFFER_BYTES:
            self.pass_on()
        return size

    def pass_on(self) -> None:
        """Write what is here."""
        if not self._rest:
            return
        self._passed += len(self._rest)
        self._file.write(self._rest)
        self._rest = bytearray()

    def tell(self) -> int:
        return self._passed + len(self._rest)


def _check_order(batch: pa.RecordBatch, last: _Key, path: str) -> tuple[int, _Key]:
    """Return the number of transactions that begin in the batch, and its last key.

    Raises RelayError if the changes are out of order.
    """
    commit, start, position = (batch[name].to_numpy() for name in _ORDER)
    same_commit = commit[1:] == commit[:-1]
    same = same_commit & (start[1:] == start[:-1])
    inside = (
        (commit[1:] > commit[:-1])
        | (same_commit & (start[1:] > start[:-1]))
        | (same & (position[1:] > position[:-1]))
    )
    begins, ends = ((int(commit[i]), int(start[i]), int(position[i])) for i in (0, -1))
    if begins <= last or not inside.all():
        at = (
            begins
            if begins <= last
            else tuple(int(column[1:][~inside][0]) for column in (commit, start, position))
        )
        raise RelayError(
            f"{path}: changes out of order at commit_ts {at[0]}, start_ts {at[1]}, position {at[2]}"
        )
    fresh = int(np.count_nonzero(~same)) + (begins[:2] != last[:2])
    return fresh, ends


def part_batches(storage: Storage, part: Part) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a part, one after another.

    However large the part is, one batch (about 8 MiB) is in memory at a time.

    Length and CRC-32C of the whole file are checked before the first; of the archive, those of the
    row groups that belong together. Raises RelayCorruptError.
    """
    if is_selection(part.path):
        yield from read_row_groups(storage, part.path, part.crc32c, part.rows)
        return
    where = (
        f"relay part {part.path} of {storage.url}, commit_ts {part.min_commit_ts} to"
        f" {part.max_commit_ts}"
    )
    hint = (
        "restore the file from a copy, or, while the pumps still hold these commits, remove the"
        " window records from this one on and land again"
    )
    with _checked(storage, part, where, hint) as file:
        rows = 0
        try:
            # What is small is decompressed here: to hand its columns to threads, and to wait for
            # them, takes longer.
            options = pa.ipc.IpcReadOptions(use_threads=part.bytes > _READ_BYTES)
            reader = pa.ipc.open_file(file, options=options)
            if not reader.schema.equals(PART_SCHEMA):
                raise RelayCorruptError(
                    f"{where}: unknown columns {reader.schema.names}", hint=hint
                )
            for i in range(reader.num_record_batches):
                batch = reader.get_batch(i)
                rows += batch.num_rows
                yield batch
        except pa.ArrowInvalid as error:
            raise RelayCorruptError(f"{where}: {error}", hint=hint) from error
        if rows != part.rows:
            raise RelayCorruptError(
                f"{where}: {rows} rows, the window record has {part.rows}", hint=hint
            )


def _checked(storage: Storage, part: Part, where: str, hint: str) -> pa.NativeFile:
    """Open a part's file, of the right length and checksum, at its beginning.

    A file that was damaged on the way here is read once more. A small one is held in memory: two
    readings of a file cost more than all that is done with it.
    """
    for last in (False, True):
        try:
            file = storage.open(part.path)
        except FileNotFoundError:
            raise RelayCorruptError(f"{where}: the file is missing", hint=hint) from None
        size, crc = file.size(), 0
        if size == part.bytes <= _READ_BYTES:
            with file:
                data = file.read()
            file, crc, size = pa.BufferReader(data), google_crc32c.value(data), len(data)
        while size == part.bytes > _READ_BYTES and (data := file.read(_READ_BYTES)):
            crc = google_crc32c.extend(crc, data)
        if (size, crc) == (part.bytes, part.crc32c):
            file.seek(0)
            return file
        file.close()
        if last and size != part.bytes:
            raise RelayCorruptError(
                f"{where}: {size} bytes, but the window record has {part.bytes}", hint=hint
            )
    raise RelayCorruptError(
        f"{where}: CRC-32C {crc:#010x}, the window record has {part.crc32c:#010x}", hint=hint
    )


def iter_parts(
    url: str | Storage, parts: Sequence[Part | Mapping[str, Any]]
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of parts, merged in commit order, in PART_SCHEMA, batch by batch.

    `url` is the relay log's; `parts` are descriptors, as objects or as in the window record's JSON,
    of one window or of several. When two parts hold the same transaction the first one's rows count
    (TiDB repeated a write on another pump), and both must be equal. It works anywhere the
    URL can be reached, so also in a Spark executor. A part that shares no commit range with the
    others, such as that of a single large transaction, is never in memory as a whole. Raises
    RelayCorruptError.
    """
    storage = open_storage(url) if isinstance(url, str) else url
    described = [part if isinstance(part, Part) else Part.from_dict(part) for part in parts]
    for group in _overlapping(described):
        if len(group) == 1:
            yield from part_batches(storage, group[0])
        else:
            tables = [
                pa.Table.from_batches(part_batches(storage, part), PART_SCHEMA) for part in group
            ]
            try:
                merged = merge(tables)
            except CopiesDifferError as found:
                first, second = (group[i].path for i in found.owners)
                raise RelayCorruptError(
                    f"relay parts {first!r} and {second!r} of {storage.url} have different rows of"
                    f" transaction {found.start_ts}, commit_ts {found.commit_ts}",
                    hint=(
                        "while the pumps still hold this commit, remove the window records from"
                        " this one on and land again: landing names the pumps, and what to do"
                    ),
                ) from None
            yield from merged.to_batches()


def read_parts(url: str | Storage, parts: Sequence[Part | Mapping[str, Any]]) -> pa.Table:
    """Return the same as `iter_parts`, as one table."""
    return pa.Table.from_batches(iter_parts(url, parts), PART_SCHEMA)


def _overlapping(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Group parts that overlap in time; the groups ascend.

    Within a group in the order given.
    """
    group: list[int] = []
    reach = -1
    for i in sorted(range(len(parts)), key=lambda i: (parts[i].min_commit_ts, i)):
        if group and parts[i].min_commit_ts > reach:
            yield [parts[j] for j in sorted(group)]
            group = []
        group.append(i)
        reach = max(reach, parts[i].max_commit_ts)
    if group:
        yield [parts[j] for j in sorted(group)]


class CopiesDifferError(RelayError):
    """Two tables have different rows of one transaction; `owners` are their places."""

    def __init__(self, commit_ts: int, start_ts: int, owners: tuple[int, int]) -> None:
        super().__init__(
            f"two copies of transaction {start_ts}, commit_ts {commit_ts}, have different rows"
        )
        self.commit_ts, self.start_ts, self.owners = commit_ts, start_ts, owners


def merge(tables: Sequence[pa.Table], decided: Collection[int] = ()) -> pa.Table:
    """Merge tables of the same columns into one.

    Each is sorted by (commit_ts, start_ts, position), or without the last where a row is a
    transaction. A transaction, which both timestamps name, counts only in the first table that has
    it. All others must have the same rows of it, unless it was committed at one of the `decided`
    TSOs. Raises CopiesDifferError.
    """
    places = [place for place, table in enumerate(tables) if table.num_rows]
    kept = [tables[place] for place in places]
    if len(kept) < 2:
        return kept[0] if kept else next(iter(tables), PART_SCHEMA.empty_table())
    commit, start = (
        np.concatenate([table[name].to_numpy() for table in kept]) for name in _ORDER[:2]
    )
    owner = np.repeat(places, [table.num_rows for table in kept])
    whole = pa.concat_tables(kept).combine_chunks()
    # Nearly always all rows of a commit_ts come from one table: a stable sort by it is enough.
    order = np.argsort(commit, kind="stable")
    commits, starts, owners = commit[order], start[order], owner[order]
    shared = (commits[1:] == commits[:-1]) & (
        (starts[1:] != starts[:-1]) | (owners[1:] != owners[:-1])
    )
    if shared.any():
        order = np.lexsort((owner, start, commit))
        commits, starts, owners = commit[order], start[order], owner[order]
        begins = np.append(True, (commits[1:] != commits[:-1]) | (starts[1:] != starts[:-1]))
        numbers = np.cumsum(begins) - 1
        is_first = owners == owners[np.flatnonzero(begins)[numbers]]
        if not is_first.all():
            copies = ~is_first & ~np.isin(commits, list(decided))
            _check_copies(whole, order, numbers, owners, is_first, copies)
        order = order[is_first]
    return whole.take(pa.array(order))


def _check_copies(  # noqa: PLR0913 columns of the same rows
    rows: pa.Table,
    order: _Ints,
    numbers: _Ints,
    owners: _Ints,
    is_first: npt.NDArray[np.bool_],
    is_copy: npt.NDArray[np.bool_],
) -> None:
    """Compare copies of transactions with their first ones. Raises CopiesDifferError.

    `order` has the places of `rows`; the other columns are in that order. `numbers` is the
    transaction of each row, `owners` its table.
    """
    for owner in np.unique(owners[is_copy]).tolist():
        copies = np.flatnonzero(is_copy & (owners == owner))
        firsts = np.flatnonzero(is_first & np.isin(numbers, numbers[copies]))
        if _is_equal(rows, order[firsts], order[copies]):
            continue
        for number in np.unique(numbers[copies]).tolist():
            own, other = (each[numbers[each] == number] for each in (firsts, copies))
            if not _is_equal(rows, order[own], order[other]):
                commit_ts, start_ts = (
                    rows[name][int(order[own[0]])].as_py() for name in _ORDER[:2]
                )
                raise CopiesDifferError(commit_ts, start_ts, (int(owners[own[0]]), owner))


def _is_equal(rows: pa.Table, some: _Ints, others: _Ints) -> bool:
    return len(some) == len(others) and bool(
        rows.take(pa.array(some)).equals(rows.take(pa.array(others)))
    )
