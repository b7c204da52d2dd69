"""The keys under which a recorded transaction wrote rows of partitioned tables in TiKV.

A recording holds no rows' keys. They are made from its binlogs and definitions: a row is inserted
into the partition that the definition of its `schema_version` names, and changed or removed where
it is. (A real TiDB with metadata locks may insert by a newer definition; the recordings' sessions
didn't.) Other tables' rows have no keys: nothing asks for them.
"""

from __future__ import annotations

import bisect
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sluice.devstack.tidb.ddl_history import HISTORY_PREFIX
from sluice.tidb import pb
from sluice.tidb.codec.row import decode_delete, decode_insert, decode_update
from sluice.tidb.ddl_actions import REMOVES_PARTITIONS
from sluice.tidb.ddl_schema_versions import versions_of
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.partitions import PartitionError, partition_of
from sluice.tidb.record_keys import handle_of_insert, handles_of_images, record_key
from sluice.tidb.schema import Table
from sluice.tidb.tikv.meta import string_key


def _place(table: Table, row: Mapping[str, object]) -> int | None:
    """Return the partition of a row; None where only TiDB can compute it."""
    try:
        return partition_of(table, row)
    except PartitionError:
        return None


@dataclass(frozen=True, slots=True)
class Image:
    """A row before (`is_old`) or after a change, and its key by each definition of its table.

    The key is b"" where it has none. `named`: the place in `keys` of the definition that the
    binlog names.
    """

    table_id: int
    is_old: bool
    keys: tuple[bytes, ...]
    named: int


class RowWrites:
    """Keys of rows, by the definitions that DDL jobs left behind."""

    def __init__(self, meta: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Create the row writes; `meta`: TiDB's meta keys with their values."""
        values = dict(meta)
        found: dict[int, list[tuple[int, Table]]] = defaultdict(list)

        def read_diff(version: int) -> dict[str, object] | None:
            text = values.get(string_key(f"Diff:{version}"))
            return None if text is None else json.loads(text)

        for key, value in values.items():
            if not key.startswith(HISTORY_PREFIX):
                continue
            job = DdlHistoryJob.from_json(json.loads(value))
            info = job.table_info
            if not job.succeeded or info is None or not (info.get("partition") or {}).get("enable"):
                continue
            # A dropped partition is out of the definition from the job's first step on.
            is_staged = job.type in REMOVES_PARTITIONS
            version = versions_of(job, 0, read_diff)[0] if is_staged else job.schema_version
            found[int(info["id"])].append(
                (version, Table.from_tidb(info, job.schema_id, job.schema_name))
            )
        self._there: set[bytes] = set()
        self._tables = {
            table_id: sorted(each, key=lambda pair: pair[0]) for table_id, each in found.items()
        }

    def images(self, payload: bytes) -> list[Image]:
        """Return the images of rows in partitioned tables that a Prewrite binlog holds.

        They are in no order.
        """
        if not self._tables:
            return []
        message = pb.binlog.Binlog.FromString(payload)
        value = pb.binlog.PrewriteValue.FromString(message.prewrite_value)
        return [
            image
            for mutation in value.mutations
            for image in self.images_of(mutation, value.schema_version)
        ]

    def commit(self, images: Iterable[Image]) -> set[bytes]:
        """Return the keys that a transaction writes, given in the order of commits."""
        found = list(images)
        there, gone = set[bytes](), set[bytes]()
        for table_id in {image.table_id for image in found}:
            own = [image for image in found if image.table_id == table_id]
            used = self.definition_of(own)
            there |= {image.keys[used] for image in own if not image.is_old} - {b""}
            gone |= {image.keys[used] for image in own if image.is_old} - {b""}
        self._there -= gone - there
        self._there |= there
        return there | gone

    def definition_of(self, images: Sequence[Image]) -> int:
        """Return the place of the definition by which a transaction wrote.

        It is the version's, unless a row that the transaction changes lies there by another one.
        """
        named = images[0].named
        for image in images:
            if image.is_old and image.keys[named] not in self._there:
                others = [at for at, key in enumerate(image.keys) if key in self._there]
                if others:
                    return others[-1]
        return named

    def images_of(self, mutation: pb.binlog.TableMutation, version: int) -> Iterator[Image]:
        """Yield the images of inserts, of deletes, then the old and new ones of updates."""
        known = self._tables.get(mutation.table_id, [])
        at = bisect.bisect_right(known, version, key=lambda pair: pair[0])
        if not at:
            return
        table = known[at - 1][1]
        found = [
            (False, decode_insert(table, row), handle_of_insert(table, row))
            for row in mutation.inserted_rows
        ]
        found += [
            (True, decode_delete(table, row), handles_of_images(table, row, 1)[0] or b"")
            for row in mutation.deleted_rows
        ]
        for row in mutation.updated_rows:
            pairs = zip(decode_update(table, row), handles_of_images(table, row, 2), strict=True)
            found += [
                (is_old, values, handle or b"")
                for is_old, (values, handle) in zip((True, False), pairs)
            ]
        names = [column.name for column in table.stored_columns]
        for is_old, values, handle in found:
            row_values = dict(zip(names, values, strict=False))
            places = [_place(each, row_values) for _, each in known]
            keys = tuple(
                b"" if place is None or not handle else record_key(place, handle)
                for place in places
            )
            yield Image(mutation.table_id, is_old, keys, at - 1)
