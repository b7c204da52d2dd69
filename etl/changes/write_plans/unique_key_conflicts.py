"""Detect changes that share a unique key value; all others may run side by side.

A change has **keys**: the values of the primary key and of every unique key, before and after.
Going through the changes in order, a change whose keys are in no group begins a group; one whose
keys belong to one group joins it; one whose keys belong to several groups **conflicts**:
everything before it has to be executed first (a flush), then all keys are forgotten. A group is
executed in order by one worker, so whatever touches one row, or takes over a unique value, stays
in order:

    SQL1: UPDATE ... id 3 -> 4   keys 3, 4   begins group a
    SQL2: UPDATE ... id 2 -> 5   keys 2, 5   begins group b, may run beside SQL1
    SQL3: DELETE ... id 3        key 3       joins group a: after SQL1
    SQL4: UPDATE ... id 5 -> 3   keys 5, 3   meets a and b: flush, then begins a new group

The rule is the original Drainer's; what differs is that changes are numbered in columns, that most
need no loop, and that a transaction isn't cut: values may be handed on in it in a ring, so that
only before and behind it they are unique. Its changes that have keys in common are as one, and a
flush that one of them needs comes before all of it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ConflictSchedule:
    """The round and the group of each change.

    Rounds (int32) ascend, and between two of them lies a flush; groups are within the round
    (int64), and those of one round have no key in common.
    """

    rounds: np.ndarray
    groups: np.ndarray

    @property
    def flushes(self) -> int:
        """Return how often everything has to be executed before going on."""
        return int(self.rounds[-1]) if len(self.rounds) else 0


def schedule_conflicts(
    transactions: np.ndarray, owners: np.ndarray, keys: np.ndarray
) -> ConflictSchedule:
    """Assign changes, given in order, to rounds and groups.

    `transactions` has for each change which one it is of, such as a commit_ts; those of one stand
    side by side. `owners` and `keys` (both int64, same length) list which change has which key, in
    any order; every change has one at least.
    """
    changes = len(transactions)
    order = np.argsort(owners, kind="stable")
    owners, keys = owners[order], keys[order]
    starts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    if len(starts) != changes:
        raise ValueError(f"{changes} changes, but keys for {len(starts)}")
    first = keys[starts]
    if (keys == first[np.repeat(np.arange(changes), np.diff(np.append(starts, len(keys))))]).all():
        # one key each: no change can meet two groups
        return ConflictSchedule(np.zeros(changes, np.int32), first)
    listed = keys.tolist()
    own = [listed[begin:end] for begin, end in itertools.pairwise([*starts.tolist(), len(listed)])]
    begins = np.flatnonzero(np.append(True, transactions[1:] != transactions[:-1])).tolist()
    sizes = np.diff([*begins, changes])
    rounds: list[int] = []
    groups: list[int] = []
    held: dict[int, int] = {}
    number = 0
    for begin, end in itertools.pairwise([*begins, changes]):
        if not _assign_groups(own[begin:end], held, groups):
            del groups[begin:]
            joined = _merge_groups(own[begin:end])
            met = _find_conflicts(joined, held)
            if met is None:
                number += 1
                held.clear()
                met = {}
            held.update((key, met.get(root, root)) for key, root in joined.items())
            groups += [held[each[0]] for each in own[begin:end]]
        rounds.append(number)
    return ConflictSchedule(
        np.repeat(np.array(rounds, np.int32), sizes), np.array(groups, np.int64)
    )


def _assign_groups(own: list[list[int]], held: dict[int, int], groups: list[int]) -> bool:
    """Give a transaction's changes their groups, one after the other.

    If one meets several groups it is False, and `held` is as before.
    """
    fresh: list[int] = []
    for keys in own:
        met = {held[key] for key in keys if key in held}
        if len(met) > 1:
            for key in fresh:
                del held[key]
            return False
        group = met.pop() if met else keys[0]
        for key in keys:
            if key not in held:
                held[key] = group
                fresh.append(key)
        groups.append(group)
    return True


def _merge_groups(own: list[list[int]]) -> dict[int, int]:
    """Map each key of a transaction's changes to one that stands for all connected with it."""
    parent: dict[int, int] = {}

    def root(key: int) -> int:
        while (above := parent.setdefault(key, key)) != key:
            parent[key] = key = parent[above]
        return key

    for keys in own:
        top = root(keys[0])
        for key in keys[1:]:
            parent[root(key)] = top
    return {key: root(key) for key in list(parent)}


def _find_conflicts(joined: dict[int, int], held: dict[int, int]) -> dict[int, int] | None:
    """Return the group that each of a transaction's parts meets, by its root.

    None if one meets several.
    """
    met: dict[int, int] = {}
    for key, root in joined.items():
        group = held.get(key)
        if group is not None and met.setdefault(root, group) != group:
            return None
    return met
