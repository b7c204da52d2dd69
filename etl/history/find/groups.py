"""Group the row changes that a search wants: by minute, by table, by the shape of transactions."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from sluice.etl.history.find.matches import JoinedMatches
from sluice.etl.history.find.query import GroupBy
from sluice.etl.history.find.results import FoundGroup
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import tso

_MINUTE = tso.span(60_000)
_VERBS = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}


def group_matches(matches: JoinedMatches, by: Collection[GroupBy]) -> list[FoundGroup]:
    """Return the groups of a window's changes, which are ascending by transaction."""
    starts, sizes = matches.bounds()
    transactions = np.repeat(np.arange(len(starts)), sizes)
    names = sorted({table.full_name for table in matches.tables})
    number_of = {name: number for number, name in enumerate(names)}
    tables = np.array([number_of[table.full_name] for table in matches.tables])[matches.numbers]
    shapes, shape_names = _shapes(transactions, tables, matches.kinds, names)
    nothing = np.zeros(len(transactions), np.int64)
    keys = np.stack(
        (
            matches.commit_ts // _MINUTE if "minute" in by else nothing,
            tables if "table" in by else nothing,
            shapes[transactions] if "shape" in by else nothing,
        )
    )
    found, groups = np.unique(keys, axis=1, return_inverse=True)
    groups = groups.ravel()
    places = np.split(
        np.argsort(groups, kind="stable"), np.cumsum(np.bincount(groups))[:-1].tolist()
    )
    return [
        FoundGroup(
            minute * _MINUTE,
            names[table] if "table" in by else "",
            shape_names[shape] if "shape" in by else "",
            *_counts(matches, transactions, places[number]),
        )
        for number, (minute, table, shape) in enumerate(found.T.tolist())
    ]


def _counts(matches: JoinedMatches, transactions: np.ndarray, places: np.ndarray) -> list[int]:
    """Return how many transactions and changes by kind, and the first and last commit_ts."""
    kinds = matches.kinds[places]
    return [
        len(np.unique(transactions[places])),
        *(int(np.count_nonzero(kinds == kind)) for kind in (INSERT, UPDATE, DELETE)),
        int(matches.commit_ts[places[0]]),
        int(matches.commit_ts[places[-1]]),
    ]


def _shapes(
    transactions: np.ndarray, tables: np.ndarray, kinds: np.ndarray, names: Sequence[str]
) -> tuple[np.ndarray, list[str]]:
    """Return each transaction's shape as a place in the list, and the shapes by name."""
    parts: dict[int, list[str]] = {}
    distinct = np.unique(np.stack((transactions, tables, kinds.astype(np.int64))), axis=1)
    for transaction, table, kind in distinct.T.tolist():
        parts.setdefault(transaction, []).append(f"{_VERBS[kind]} {names[table]}")
    known: dict[str, int] = {}
    shapes = [known.setdefault(", ".join(parts[one]), len(known)) for one in sorted(parts)]
    return np.array(shapes, np.int64), list(known)
