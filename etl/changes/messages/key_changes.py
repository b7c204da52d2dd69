"""Encode changes as messages that have the row's key, so that topics can be compacted by it.

A change of the key is a delete and an insert. Where the format has tombstones, one follows each
delete, which is a message with the key and no value.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.messages.message import (
    BINARY,
    Encoder,
    Images,
    RowBatch,
    add_header,
    frames,
    handle_key,
    joined,
    row_headers,
)
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.schema import Column


class KeyedEncoder(Encoder):
    """Encode rows in a format whose messages have the handle key; null in a table without one."""

    splits_key_changes = True
    tombstones = True
    """A tombstone follows each delete."""
    key_headers = False
    """The halves of a change of the key have headers with the other key, as Debezium's have."""

    def rows(self, batch: RowBatch) -> pa.LargeBinaryArray:
        """Return the frames of each change's messages."""
        key = [c for c in batch.columns if c.name in handle_key(batch.table)]
        if batch.kind != UPDATE or not (moved := _moved(batch, key)).any():
            return self._changes(batch, key)
        places = np.flatnonzero(~moved), np.flatnonzero(moved)
        stay, move = (batch.take(some) for some in places)
        pieces = [self._changes(stay, key), self._key_changes(move, key)]
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_arrays(pieces).take(pa.array(order))

    @abstractmethod
    def _keys(
        self, batch: RowBatch, key: Sequence[Column], image: Images
    ) -> pa.LargeBinaryArray | None:
        """Return the messages' keys; None if `key` is empty."""

    def _key_header(
        self,
        batch: RowBatch,
        key: Sequence[Column],
        image: Images,
        keys: pa.LargeBinaryArray | None,
    ) -> pa.LargeBinaryArray | None:
        """Return the messages' keys, `keys`, as the headers of `key_headers` have them."""
        return keys

    @abstractmethod
    def _values(self, batch: RowBatch) -> pa.LargeBinaryArray | None:
        """Return the messages' values; None where a delete is but a tombstone."""

    def _changes(self, batch: RowBatch, key: Sequence[Column]) -> pa.LargeBinaryArray:
        headers, keys = row_headers(batch), self._keys(batch, key, batch.present)
        values = self._values(batch)
        found = [frames(batch.commit_ts, headers, keys, values)]
        if batch.kind == DELETE and self.tombstones and keys is not None and values is not None:
            found.append(frames(batch.commit_ts, headers, keys, None))
        return joined(found)

    def _key_changes(self, batch: RowBatch, key: Sequence[Column]) -> pa.LargeBinaryArray:
        """Return a delete and a create for each update."""
        if not self.key_headers:
            halves = (self._changes(batch.as_kind(kind), key) for kind in (DELETE, INSERT))
            return joined(list(halves))
        headers = row_headers(batch)
        images = batch.old, batch.new
        old_key, new_key = (self._keys(batch, key, image) for image in images)
        old_named, new_named = (
            self._key_header(batch, key, image, keys)
            for image, keys in zip(images, (old_key, new_key), strict=True)
        )
        deleted, created = (self._values(batch.as_kind(kind)) for kind in (DELETE, INSERT))
        to_new = add_header(headers, "__debezium.newkey", new_named)
        to_old = add_header(headers, "__debezium.oldkey", old_named)
        return joined(
            [
                frames(batch.commit_ts, to_new, old_key, deleted),
                frames(batch.commit_ts, headers, old_key, None),
                frames(batch.commit_ts, to_old, new_key, created),
            ]
        )


def _moved(batch: RowBatch, key: Sequence[Column]) -> npt.NDArray[np.bool_]:
    """Return which updates change the key."""
    found = np.zeros(len(batch), np.bool_)
    for column in key:
        # as bytes, for text need not be UTF-8
        old, new = (
            image[column.name].cast(BINARY)
            if pa.types.is_large_string(image[column.name].type)
            else image[column.name]
            for image in (batch.old, batch.new)
        )
        found |= np.asarray(pc.fill_null(pc.not_equal(old, new), fill_value=False))
    return found
