"""Divide changes by where they came from: a downstream transaction has one mark.

A checkpoint lies between two commit timestamps. So changes of several origins that were committed
at the same one are divided, too, and the checkpoint in front names those that are downstream.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class OriginRun:
    """Changes of one origin that follow one another."""

    channel: int
    places: np.ndarray
    """Their places among all changes, ascending (int64)."""
    divides: int = 0
    """The commit_ts of which the run has a part and the next one another; 0: there is none."""


def origin_runs(commit_ts: np.ndarray, channels: np.ndarray) -> list[OriginRun]:
    """Return changes, ascending by commit_ts, as runs of one channel each, in order.

    `channels` (int64): that of each change. At a commit_ts with several the first is the one before
    it, if that is among them.
    """
    if not len(commit_ts):
        return []
    if (channels == channels[0]).all():
        return [OriginRun(int(channels[0]), np.arange(len(channels)))]
    begins = np.flatnonzero(np.append(True, commit_ts[1:] != commit_ts[:-1]))
    ends = [*begins[1:].tolist(), len(commit_ts)]
    runs: list[tuple[int, list[int], int]] = []
    for begin, end in zip(begins.tolist(), ends, strict=True):
        own = channels[begin:end]
        last = runs[-1][0] if runs else int(own[0])
        there = sorted(set(own.tolist()), key=lambda each: (each != last, each))
        for channel in there:
            if not runs or runs[-1][0] != channel or runs[-1][2]:
                runs.append((channel, [], 0))
            places = runs[-1][1]
            places += (begin + np.flatnonzero(own == channel)).tolist()
            if channel != there[-1]:
                runs[-1] = channel, places, int(commit_ts[begin])
    return [OriginRun(channel, np.array(places), divides) for channel, places, divides in runs]
