"""Rows that stay downstream when they are gone upstream: marked, or each version as a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from tests.judge.kinds import BIGINT, BINARY, Kind

KeyChange = tuple[int, tuple[Any, ...], Mapping[int, Any], bool]
"""A commit timestamp, a key, values by column id, and whether the row comes; else it goes."""
_TIME = Kind("datetime", "DATETIME(3)", 12, 23, 3, BINARY)


@dataclass(frozen=True)
class Keeping:
    """A rule by which rows stay; `mark`: the column that marks deleted ones, "" for versions."""

    mark: str

    @property
    def setting(self) -> dict[str, Any]:
        if self.mark:
            return {"soft-delete": self.mark}
        return {"history": {"from": "began at", "to": "ended at", "commit-ts": "made by"}}

    @property
    def kinds(self) -> dict[str, Kind]:
        """The columns behind all others."""
        if self.mark:
            return {self.mark: _TIME}
        return {"began at": _TIME, "ended at": _TIME, "made by": BIGINT}

    def rows(
        self, changes: list[KeyChange], shown: Callable[[Mapping[int, Any]], tuple[Any, ...]]
    ) -> list[tuple[Any, ...]]:
        """Return the rows that changes leave, in order; `shown`: a row without own columns."""
        return _marked(changes, shown) if self.mark else _versions(changes, shown)


def _time(ts: int) -> str:
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ts >> 18)
    return f"{when:%Y-%m-%d %H:%M:%S.%f}"[:-3]


def _marked(
    changes: list[KeyChange], shown: Callable[[Mapping[int, Any]], tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    left: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for ts, key, values, comes in changes:
        left[key] = (*shown(values), None if comes else _time(ts))
    return list(left.values())


def _versions(
    changes: list[KeyChange], shown: Callable[[Mapping[int, Any]], tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    opened: dict[tuple[Any, ...], tuple[tuple[Any, ...], int]] = {}
    found = []
    for ts, several in groupby(changes, lambda change: change[0]):
        outcome: dict[tuple[Any, ...], tuple[Any, ...] | None] = {}
        for _, key, values, comes in several:
            outcome[key] = shown(values) if comes else None
        for key, row in outcome.items():
            was = opened.get(key)
            if row == (was and was[0]):
                continue
            if was is not None:
                found.append((*was[0], _time(was[1]), _time(ts), was[1]))
                del opened[key]
            if row is not None:
                opened[key] = row, ts
    return [*found, *((*row, _time(ts), None, ts) for row, ts in opened.values())]
