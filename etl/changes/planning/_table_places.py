"""Find the places of each table's changes, and count them by kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

_KIND_COUNT = 3


def kind_counts(
    kinds: np.ndarray, places: np.ndarray, moved: Mapping[int, tuple[int, bytes]]
) -> list[int]:
    """Return how many changes of each kind are at places, of which some have become others."""
    found = np.bincount(kinds[places], minlength=_KIND_COUNT)
    for place, (kind, _) in moved.items():
        found[kinds[place]] -= 1
        found[kind] += 1
    counts: list[int] = found.tolist()
    return counts


TablePlaces = tuple[int, np.ndarray, int, int, int, int]


def places_by_table(
    ids: np.ndarray, commit_ts: np.ndarray, kinds: np.ndarray, cuts: Sequence[int] = ()
) -> Iterator[TablePlaces]:
    """Yield each table id with its places in `ids`, first commit timestamp and count of each kind.

    The places ascend. What lies between two `cuts` (places) comes together.
    """
    groups = ids
    if len(cuts):
        _, groups = np.unique(ids, return_inverse=True)
        piece = np.searchsorted(np.array(cuts), np.arange(len(ids)), side="right")
        groups = groups + piece * (len(ids) + 1)
    order = np.argsort(groups, kind="stable")
    in_order = groups[order]
    is_first = np.append(True, in_order[1:] != in_order[:-1])[: len(order)]
    begins = np.flatnonzero(is_first)
    cells = (np.cumsum(is_first) - 1) * _KIND_COUNT + kinds[order]
    counts = np.bincount(cells, minlength=_KIND_COUNT * len(begins)).reshape(-1, _KIND_COUNT)
    ends = [*begins[1:].tolist(), len(order)]
    firsts = order[begins]
    of_kinds = (counts[:, kind].tolist() for kind in range(_KIND_COUNT))
    places = map(order.__getitem__, map(slice, begins.tolist(), ends))
    yield from zip(ids[firsts].tolist(), places, commit_ts[firsts].tolist(), *of_kinds, strict=True)
