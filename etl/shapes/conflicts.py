"""Which changes may run side by side: the conflict detection of `parallel` mode.

A change has **keys**: the values of the primary key and of every unique key, before and after. Going through the
changes in order, a change whose keys nobody holds begins a group; one whose keys belong to one group joins it; one
whose keys belong to several groups **conflicts**: everything before it has to be executed first (a flush), then all
keys are forgotten. A group is executed in order by one worker, so whatever touches one row, or takes over a unique
value, stays in order:

    SQL1: UPDATE ... id 3 -> 4   keys 3, 4   begins group a
    SQL2: UPDATE ... id 2 -> 5   keys 2, 5   begins group b, may run beside SQL1
    SQL3: DELETE ... id 3        key 3       joins group a: after SQL1
    SQL4: UPDATE ... id 5 -> 3   keys 5, 3   meets a and b: flush, then begins a group of the next round

The rule is the original Drainer's; what differs is that changes are numbered in columns, and that most need no loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Dispatch:
    """For each change the round it is executed in (int32, ascending; between two rounds lies a flush) and its group
    within the round (int64; groups of one round have no key in common)."""

    rounds: np.ndarray
    groups: np.ndarray

    @property
    def flushes(self) -> int:
        """How often everything has to be executed before going on."""
        return int(self.rounds[-1]) if len(self.rounds) else 0


def dispatch(changes: int, owners: np.ndarray, keys: np.ndarray) -> Dispatch:
    """Assign `changes` changes, given in order, to rounds and groups.

    `owners` and `keys` (both int64, same length) say which change has which key, in any order; every change has one at
    least.
    """
    order = np.argsort(owners, kind="stable")
    owners, keys = owners[order], keys[order]
    starts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    if len(starts) != changes:
        raise ValueError(f"{changes} changes, but keys for {len(starts)}")
    first = keys[starts]
    if (keys == first[np.repeat(np.arange(changes), np.diff(np.append(starts, len(keys))))]).all():
        return Dispatch(np.zeros(changes, np.int32), first)  # one key each: nobody can meet two groups
    rounds = np.empty(changes, np.int32)
    groups = np.empty(changes, np.int64)
    held: dict[int, int] = {}
    number = 0
    listed = keys.tolist()
    edges = [*starts.tolist(), len(listed)]
    for change in range(changes):
        own = listed[edges[change] : edges[change + 1]]
        met = {held[key] for key in own if key in held}
        if len(met) > 1:
            number += 1
            held.clear()
            met.clear()
        group = met.pop() if met else own[0]
        for key in own:
            held[key] = group
        rounds[change] = number
        groups[change] = group
    return Dispatch(rounds, groups)
