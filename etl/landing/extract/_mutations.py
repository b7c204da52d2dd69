"""Gather the transactions of a batch, and the mutations of their Prewrites, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.etl.landing.extract._wire_scan import RUN_WIRE_TYPE, Bytes, Ints, WireFields

# Fields of TableMutation in tidb/proto/binlog.proto, as number << 3 | wire type.
_TABLE_ID, _INSERTED, _UPDATED, _DELETED, SEQUENCE, _PACKED_SEQUENCE = (
    0x08,
    0x12,
    0x1A,
    0x32,
    0x38,
    0x3A,
)
_OBSOLETE = (0x20, 0x22, 0x2A)  # deleted_ids, the same packed, deleted_pks

# MutationType (Insert 0, Update 1, the obsolete DeleteID 2 and DeletePK 3, DeleteRow 4) to a part's
# kind. What is obsolete counts as a kind that no mutation has rows of.
_KIND = np.array([0, 1, 3, 3, 2], dtype=np.uint8)
_UNKNOWN = 5
_OBSOLETE_KIND = np.uint8(2)


class Transactions:
    """A batch in WINDOW_SCHEMA as arrays; payload i lies in `data` from begins[i] to ends[i]."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.commits: Ints = batch["commit_ts"].to_numpy()
        self.starts: Ints = batch["start_ts"].to_numpy()
        column = batch["payload"]
        _, offsets, payloads = column.buffers()
        self.payloads = payloads if payloads is not None else pa.py_buffer(b"")
        self.data: Bytes = np.frombuffer(self.payloads, np.uint8)
        edges = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        self._edges = edges
        self.begins, self.ends = edges[:-1], edges[1:]

    def arguments(self) -> tuple[pa.Buffer, Ints, Ints, Ints]:
        """Return the arguments for the kernel."""
        return self.payloads, self._edges, self.commits, self.starts


@dataclass(slots=True)
class Mutations:
    """The TableMutations of a batch, in their order.

    Rows are numbered as they lie in the payloads; changes as the sequences have them, mutation by
    mutation.
    """

    owners: Ints
    """The transaction each belongs to."""
    versions: Ints
    table_ids: Ints
    obsolete: npt.NDArray[np.bool_]
    """True if the mutation has rows of obsolete kinds."""
    has: Ints
    """Counts of inserted, updated, deleted rows by mutation: three columns."""
    named: Ints
    """Counts by kind in its sequence; a fourth column for the obsolete kinds."""
    edges: Ints
    """Begins and ends of rows: row i from edges[2 i] to edges[2 i + 1]."""
    kinds: Bytes
    """The kind of every change."""
    _order: Ints | None
    """The rows by mutation and list, if they are stored in another order."""

    @classmethod
    def read(cls, data: Bytes, fields: WireFields, owners: Ints, versions: Ints) -> Mutations:
        count = len(owners)
        tag = fields.tag
        which = np.flatnonzero((tag == _INSERTED) | (tag == _UPDATED) | (tag == _DELETED))
        edges = np.empty(2 * len(which), np.int64)
        edges[::2], edges[1::2] = fields.begin[which], fields.end[which]
        slots = (
            fields.owner[which] * np.int64(3) + (tag[which] != _INSERTED) + (tag[which] == _DELETED)
        )
        order = np.argsort(slots, kind="stable") if _is_descending(slots) else None
        kinds, kind_owners = _sequences(data, fields)
        obsolete = np.zeros(count, np.bool_)
        obsolete[fields.owner[np.isin(tag, _OBSOLETE)]] = True
        named = np.bincount(kind_owners * np.int64(4) + kinds, minlength=4 * count)
        return cls(
            owners, versions[owners], field_values(fields, _TABLE_ID, count), obsolete,
            np.bincount(slots, minlength=3 * count).reshape(-1, 3), named.reshape(-1, 4),
            edges, kinds, order,
        )  # fmt: skip

    def places(self) -> Ints:
        """Return the row of each change. Sequences and lists must agree."""
        places = np.arange(len(self.kinds))
        slots = np.repeat(np.arange(len(self.owners)) * 4, self.named.sum(axis=1)) + self.kinds
        # The n-th insert of a sequence is the n-th inserted row: sorting a mutation's sequence by
        # kind, and leaving equal kinds in order, gives the order of the lists.
        if _is_descending(slots):
            places[np.argsort(slots, kind="stable")] = np.arange(len(slots))
        return places if self._order is None else self._order[places]

    def rows(self, payloads: pa.Buffer) -> pa.Array:
        """Return an array that shares the payloads' memory, whose element 2 i is row i."""
        buffers = [None, pa.py_buffer(self.edges), payloads]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self.edges) - 1, buffers)


def _sequences(data: Bytes, fields: WireFields) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """Return the kinds that sequences name, as a part's kinds (3: obsolete), and their mutations.

    Unknown types are left out, as protobuf does.
    """
    tag = fields.tag
    runs = np.isin(tag, (SEQUENCE | RUN_WIRE_TYPE, _PACKED_SEQUENCE))
    if not runs.any():
        single = fields.take(tag == SEQUENCE)
        values, owners = single.begin, single.owner
    else:
        pieces, counts = [], []
        some = fields.take(runs | (tag == SEQUENCE))
        for kind, begin, end in zip(some.tag.tolist(), some.begin.tolist(), some.end.tolist()):
            if kind == SEQUENCE:
                pieces.append(np.array([begin if 0 <= begin <= _UNKNOWN else _UNKNOWN], np.uint8))
            elif kind == _PACKED_SEQUENCE:
                pieces.append(_packed(data[begin:end]))
            else:
                pieces.append(data[begin + 1 : end : 2])
            counts.append(len(pieces[-1]))
        values, owners = np.concatenate(pieces), np.repeat(some.owner, counts)
    known = (values >= 0) & (values < len(_KIND))
    if not known.all():
        values, owners = values[known], owners[known]
    return _KIND[values], owners


def _packed(data: Bytes) -> Bytes:
    """Return the values of a packed field of enums, _UNKNOWN for those of more than one byte.

    One that breaks off ends in an obsolete kind, which no sequence agrees with.
    """
    last = data < 0x80
    single = last & np.concatenate(([True], last[:-1]))[: len(last)]
    values = np.where(single, data, _UNKNOWN).astype(np.uint8)[last]
    return values if not len(data) or last[-1] else np.append(values, _OBSOLETE_KIND)


def field_values(fields: WireFields, tag: int, count: int) -> Ints:
    """Return the value of each message's last VARINT field with this tag; 0 without one."""
    at = fields.last(tag, count)
    return (
        np.where(at >= 0, fields.begin[at], 0) if len(fields.begin) else np.zeros(count, np.int64)
    )


def _is_descending(values: Ints) -> bool:
    return bool((values[1:] < values[:-1]).any())
