"""Write the changes of Prewrite binlogs to the stand-in TiKV, for followers of its change data.

It stands where a client of pumps stands. The transaction's keys are locked with its Prewrite, and
committed or rolled back with its primary key, by the caller that does that in the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sluice.devstack.tidb.mvcc_records import Applied, Change
from sluice.devstack.tidb.row_writes import Image, RowWrites
from sluice.devstack.tidb.sql import Versions
from sluice.devstack.tidb.store import Store
from sluice.devstack.tidb.stored_values import (
    Datums,
    datums_of,
    encode_version_1,
    encode_version_2,
    stored_columns,
)
from sluice.tidb import pb
from sluice.tidb.codec.datum import DURATION, VARINT, decode_datum, skip_datum
from sluice.tidb.codec.memcomparable import encode_int, encode_uint
from sluice.tidb.codec.row import handle_columns
from sluice.tidb.record_keys import handle_of_insert, handles_of_images, record_key
from sluice.tidb.schema import Table
from sluice.tidb.tikv.meta import string_key

_DDL_KEY = string_key("DDLTableVersion")
"""Key that TiDB's DDL writes."""
_VERSION_1_EVERY = 4
"""One transaction in this many writes the old row format, which a setting still allows."""

_RowChange = tuple[bytes, Datums | None, Datums | None]
"""Handle, row before, row after."""


class ChangeWriter:
    """Write binlogs' transactions to `store` as TiDB would have, on the cluster's event loop."""

    def __init__(
        self, store: Store, versions: Versions, meta: Iterable[tuple[bytes, bytes]]
    ) -> None:
        """Create the change writer.

        `meta`: TiDB's meta keys of the recording, for definitions of partitions.
        """
        self._store, self._versions = store, versions
        self._places = RowWrites(meta)
        self._handles: dict[tuple[int, bytes], bytes] = {}
        """Handles whose text only TiDB can turn into a key, by table and key columns."""
        self._at_commit: dict[int, list[tuple[Table, pb.binlog.TableMutation, list[Image]]]] = {}
        """Changes of partitioned tables by start_ts: a row's place is known at its commit."""
        self._open_ddls: set[int] = set()
        store.listen(self._ended)

    @property
    def oldest_ddl_ts(self) -> int | None:
        """Return the first start_ts of DDL that is prewritten.

        The keys that it changes are known at its commit, so no region's resolved timestamp may pass
        it until then.
        """
        return min(self._open_ddls, default=None)

    async def open(self) -> None:
        """Do nothing: TiKV is there."""

    async def close(self) -> None:
        """Do nothing."""

    async def prewrite(self, start_ts: int, payload: bytes) -> None:
        """Lock the transaction's keys, unless TiKV has no lock of its primary."""
        message = pb.binlog.Binlog.FromString(payload)
        primary = message.prewrite_key
        if primary not in self._store.locked_keys(start_ts):
            return
        if message.ddl_job_id:
            changes = {_DDL_KEY: Change(b"3")}
            self._open_ddls.add(start_ts)
        else:
            changes = self._changes(start_ts, message)
            if is_index_key(primary):
                changes[primary] = Change(b"0")
        self._store.prewrite_all(changes, start_ts, primary, follow=True)

    async def finish(self, start_ts: int, payload: bytes) -> None:
        """Do nothing: the transaction ended with its primary key."""

    def _changes(self, start_ts: int, message: pb.binlog.Binlog) -> dict[bytes, Change]:
        value = pb.binlog.PrewriteValue.FromString(message.prewrite_value)
        found: dict[bytes, Change] = {}
        for mutation in value.mutations:
            table = self._versions.definition(mutation.table_id, value.schema_version)
            if table is None:
                continue
            if table.is_partitioned:
                images = self.images(start_ts, mutation, value.schema_version)
                self._at_commit.setdefault(start_ts, []).append((table, mutation, images))
                anchor = b"t" + encode_int(table.id) + b"_i" + encode_int(1) + encode_uint(start_ts)
                found[anchor] = Change(b"0")
            else:
                rows = self._row_changes(table, mutation)
                placed = ((record_key(table.id, handle), old, new) for handle, old, new in rows)
                found |= self._encoded(table, start_ts, placed)
        return found

    def images(self, start_ts: int, mutation: pb.binlog.TableMutation, version: int) -> list[Image]:
        """Return the images of a transaction's rows in a partitioned table; see `RowWrites`."""
        return list(self._places.images_of(mutation, version))

    def _ended(self, rows: list[Applied]) -> None:
        for start_ts, kind, commit_ts in {(row.start_ts, row.kind, row.commit_ts) for row in rows}:
            if kind == pb.cdc.Event.LogType.PREWRITE:
                continue
            self._open_ddls.discard(start_ts)
            for table, mutation, images in self._at_commit.pop(start_ts, ()):
                if commit_ts:
                    self._write_partitions(table, mutation, images, start_ts, commit_ts)

    def _write_partitions(
        self,
        table: Table,
        mutation: pb.binlog.TableMutation,
        images: list[Image],
        start_ts: int,
        commit_ts: int,
    ) -> None:
        """Write the rows of a partitioned table where they belong, and only now."""
        used = self._places.definition_of(images)
        self._places.commit(images)
        inserts, deletes = len(mutation.inserted_rows), len(mutation.deleted_rows)
        keys = [image.keys[used] for image in images]
        # Images are of inserts, deletes, then updates' old and new rows, each kind in its order.
        by_kind = {
            pb.binlog.Insert: iter([(key,) for key in keys[:inserts]]),
            pb.binlog.DeleteRow: iter([(key,) for key in keys[inserts : inserts + deletes]]),
            pb.binlog.Update: iter(
                zip(keys[inserts + deletes :: 2], keys[inserts + deletes + 1 :: 2])
            ),
        }
        placed: list[_RowChange] = []
        rows = self._row_changes(table, mutation, is_update_split=False)
        for kind, (_, old, new) in zip(mutation.sequence, rows, strict=True):
            own = next(by_kind[kind])
            if len(set(own)) == 1:
                placed.append((own[0], old, new))
            else:
                placed += [(own[0], old, None), (own[1], None, new)]
        placed = [each for each in placed if each[0]]
        self._store.put_all(self._encoded(table, start_ts, placed), start_ts, commit_ts)

    def _row_changes(
        self, table: Table, mutation: pb.binlog.TableMutation, *, is_update_split: bool = True
    ) -> Iterator[_RowChange]:
        """Yield the changes in the order of the statements."""
        inserted, updated, deleted = (
            iter(mutation.inserted_rows),
            iter(mutation.updated_rows),
            iter(mutation.deleted_rows),
        )
        for kind in mutation.sequence:
            if kind == pb.binlog.Insert:
                row = next(inserted)
                key, end = _handle_datums(table, row)
                handle, new = handle_of_insert(table, row), dict(datums_of(row, end))
                self._remember(table, {**key, **new}, handle)
                yield handle, None, new
            elif kind == pb.binlog.DeleteRow:
                row = next(deleted)
                old = dict(datums_of(row))
                yield self._handle(table, handles_of_images(table, row, 1)[0], old), old, None
            else:
                row = next(updated)
                pairs = datums_of(row)
                old, new = dict(pairs[: len(pairs) // 2]), dict(pairs[len(pairs) // 2 :])
                before, after = handles_of_images(table, row, 2)
                old_handle = self._handle(table, before, old)
                new_handle = old_handle if after is None else after
                self._remember(table, new, new_handle)
                if old_handle == new_handle or not is_update_split:
                    yield new_handle, old, new
                else:
                    yield old_handle, old, None
                    yield new_handle, None, new

    def _handle(self, table: Table, made: bytes | None, row: Datums) -> bytes:
        return self._handles[table.id, _key_columns(table, row)] if made is None else made

    def _remember(self, table: Table, row: Datums, handle: bytes) -> None:
        if table.handle_kind == "common":
            self._handles[table.id, _key_columns(table, row)] = handle

    def _encoded(
        self, table: Table, start_ts: int, changes: Iterable[_RowChange]
    ) -> dict[bytes, Change]:
        """Return the net change of each key."""
        net: dict[bytes, tuple[Datums | None, Datums | None]] = {}
        for key, old, new in changes:
            net[key] = (net[key][0] if key in net else old), new
        is_old_format = start_ts // 3 % _VERSION_1_EVERY == 0 and table.handle_kind != "common"

        def encoded(row: Datums | None) -> bytes | None:
            if row is None:
                return None
            stored = stored_columns(table, row, new_collations=self._versions.new_collations())
            return encode_version_1(stored) if is_old_format else encode_version_2(stored)

        return {
            key: Change(encoded(new), encoded(old) or b"")
            for key, (old, new) in net.items()
            if old is not None or new is not None
        }


def is_index_key(key: bytes) -> bool:
    """Return whether a key is of an index, of which followers need nothing."""
    return key[:1] == b"t" and key[9:11] == b"_i"


def _handle_datums(table: Table, row: bytes) -> tuple[Datums, int]:
    """Return an inserted row's handle by column id, and where it ends.

    TiDB stores values again behind it only where they can't be had from it.
    """
    if table.handle_kind != "common":
        return {}, skip_datum(row, 0)
    pos, found = 0, {}
    for column, _ in handle_columns(table):
        end = skip_datum(row, pos)
        found[column.id] = row[pos:end]
        pos = end
    return found, pos


def _key_columns(table: Table, row: Datums) -> bytes:
    """Return the values of a clustered key; a TIME is in a handle in another form than in a row."""
    found = b""
    for column, _ in handle_columns(table):
        datum = row.get(column.id, b"")
        if column.kind == "time" and datum[:1] == bytes((VARINT,)):
            datum = bytes((DURATION,)) + encode_int(int(decode_datum(datum)[0].value or 0))
        found += datum
    return found
