"""Reduce many changes of one row to at most one delete and one write.

A change has an **old image** (update, delete), a **new image** (insert, update) or both. Per row
key, the images in order are REMOVE, PUT, REMOVE, PUT …: what a batch does to a key follows from
its first and last image alone. It starts with REMOVE: the row existed before. It ends with PUT:
the row exists afterwards.

Keys are compared as the exact bytes that TiDB stored, not under a collation, and that is right
under every collation as long as deletes are executed before writes: an old image holds the stored
bytes of the row it removes, so rows that are equal only under the collation ('a' deleted, 'A'
inserted) are two keys here, one deleted first, one written after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import SluiceError
from sluice.relay import DELETE, INSERT

_MAX_SMALL_CHANGES = 64  # changes


class InconsistentHistory(SluiceError, ValueError):
    """Changes of one key that can't follow one another, such as two inserts without a delete.

    `change` is the index of the second one.
    """

    hint = (
        "land the window again into an empty relay log, or leave the transaction out: `sluice txn"
        " skip`"
    )

    def __init__(self, change: int, kind: str) -> None:
        super().__init__(kind)
        self.change = change


@dataclass(frozen=True, slots=True)
class NetEffect:
    """Indexes, int64.

    `deleted`: old images of rows to delete. `inserted`: new images of rows that did not exist
    before. `updated_old`, `updated_new` (same length): old and new image of rows that existed and
    still exist.
    """

    deleted: np.ndarray
    inserted: np.ndarray
    updated_old: np.ndarray
    updated_new: np.ndarray


def key_codes(old: Sequence[pa.Array], new: Sequence[pa.Array]) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (int64) for the keys of old and new images.

    They are equal where all key columns are equal bit for bit. `old` and `new` hold the same key
    columns in the same order. A single integer column is its own code, so sorting by code is
    sorting by key.
    """
    split = len(old[0])
    both = [
        pa.chunked_array([a, b.cast(a.type)]).combine_chunks()
        for a, b in zip(old, new, strict=True)
    ]
    codes: np.ndarray | None = None
    if len(both) == 1 and pa.types.is_integer(both[0].type) and both[0].null_count == 0:
        codes = np.asarray(both[0]).astype(np.int64, copy=False)
    else:
        for array in both:
            encoded = pc.dictionary_encode(array, null_encoding="encode")
            if isinstance(encoded, pa.ChunkedArray):
                encoded = encoded.combine_chunks()
            indices = np.asarray(encoded.indices).astype(np.int64)
            if codes is None:
                codes = indices
                continue
            # keeps the product below within 64 bits
            _, codes = np.unique(codes, return_inverse=True)
            codes = codes * max(len(encoded.dictionary), 1) + indices
    assert codes is not None
    return codes[:split], codes[split:]


def net_effect(
    kinds: np.ndarray, old_codes: np.ndarray, new_codes: np.ndarray, *, partial: bool = False
) -> NetEffect:
    """Return the net effect of changes given in order.

    `kinds` (n,) int8; `old_codes` one key a change with an old image, `new_codes` one a change with
    a new image, both in order of the changes. `partial`: some changes were left out, so that the
    others needn't follow one another. Raises InconsistentHistory.
    """
    changes = len(kinds)
    if (
        changes <= _MAX_SMALL_CHANGES
        and (few := _small_net_effect(kinds.tolist(), old_codes.tolist(), new_codes.tolist()))
        is not None
    ):
        return few
    has_old, has_new = kinds != INSERT, kinds != DELETE
    # Slot 2i is the old image of change i, slot 2i+1 its new image: the images in order without
    # sorting.
    codes = np.empty((changes, 2), np.int64)
    refs = np.empty((changes, 2), np.int64)
    codes[has_old, 0], codes[has_new, 1] = old_codes, new_codes
    refs[has_old, 0], refs[has_new, 1] = np.arange(len(old_codes)), np.arange(len(new_codes))
    slots = np.flatnonzero(np.stack((has_old, has_new), axis=1).ravel())
    codes, refs = codes.ravel()[slots], refs.ravel()[slots]
    order = np.argsort(codes, kind="stable")
    codes, refs, slots = codes[order], refs[order], slots[order]
    put = (slots & 1).astype(bool)
    first = np.ones(len(codes), bool)
    first[1:] = codes[1:] != codes[:-1]
    broken = np.flatnonzero(~first[1:] & (put[1:] == put[:-1])) + 1
    if len(broken) and not partial:
        at = int(broken[0])
        what = (
            "inserted though it exists" if put[at] else "updated or deleted though it doesn't exist"
        )
        raise InconsistentHistory(int(slots[at]) // 2, what)
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], len(codes)) - 1
    existed, exists = ~put[starts], put[ends]
    return NetEffect(
        deleted=refs[starts[existed & ~exists]],
        inserted=refs[ends[~existed & exists]],
        updated_old=refs[starts[existed & exists]],
        updated_new=refs[ends[existed & exists]],
    )


def _small_net_effect(
    kinds: list[int], old_codes: list[int], new_codes: list[int]
) -> NetEffect | None:
    """Return the same without a numpy call for each step, which cost more than so few changes.

    None for a broken history.
    """
    before: dict[int, int | None] = {}
    """The first old image of each key, None for one that began with a new image."""
    now: dict[int, int | None] = {}
    """The last new image, None for one that is gone."""
    old = new = 0
    for kind in kinds:
        if kind != INSERT:
            code = old_codes[old]
            if now.setdefault(code, old) is None:
                return None
            before.setdefault(code, old)
            now[code] = None
            old += 1
        if kind != DELETE:
            code = new_codes[new]
            if now.get(code) is not None:
                return None
            before.setdefault(code, None)
            now[code] = new
            new += 1
    found: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
    for code in sorted(now):
        first, last = before[code], now[code]
        if first is None:
            if last is not None:
                found[1].append(last)
        elif last is None:
            found[0].append(first)
        else:
            found[2].append(first)
            found[3].append(last)
    return NetEffect(*(np.array(places, np.int64) for places in found))


def multiset_effect(old_codes: np.ndarray, new_codes: np.ndarray) -> NetEffect:
    """Return the net effect where all of a row's values are its key.

    Of each row, as many are gone or new as old and new images differ in number. The order plays no
    part, and nothing is kept: what goes and comes again is as it was.
    """
    _, codes = np.unique(np.concatenate((old_codes, new_codes)), return_inverse=True)
    old, new = codes[: len(old_codes)], codes[len(old_codes) :]
    count = int(codes.max(initial=-1)) + 1
    gone = np.bincount(old, minlength=count) - np.bincount(new, minlength=count)
    nothing = np.zeros(0, np.int64)
    return NetEffect(_first_by_code(old, gone), _first_by_code(new, -gone), nothing, nothing)


def _first_by_code(codes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the places of the first `wanted[code]` (none if negative) of each code, ascending."""
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=len(wanted))
    number = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[number < wanted[codes[order]]]).astype(np.int64)


def unchanged_rows(
    old: Sequence[pa.Array], new: Sequence[pa.Array], kept_old: np.ndarray, kept_new: np.ndarray
) -> np.ndarray:
    """Return which of the kept rows (bool mask) end exactly as they began.

    `old` and `new` are the same columns of both images.
    """
    same = np.arange(len(kept_old))
    for before, after in zip(old, new, strict=True):
        if len(same) == 0:
            break
        a, b = before.take(pa.array(kept_old[same])), after.take(pa.array(kept_new[same]))
        equal = pc.fill_null(pc.equal(a, b), fill_value=False)
        both_null = pc.and_(pc.is_null(a), pc.is_null(b))
        same = same[np.asarray(pc.or_(equal, both_null))]
    mask = np.zeros(len(kept_old), bool)
    mask[same] = True
    return mask
