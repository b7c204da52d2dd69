"""Stand in for the kernel's functions where it can't be compiled.

Nothing is found, so nothing is asked of what was.
"""

# ruff: noqa: PLR0913 - the arguments are those of the compiled functions, which take them by position

from __future__ import annotations

from typing import Any, TypeAlias

Buffer: TypeAlias = Any
"""Whatever has bytes to be looked at."""


def scan(
    data: Buffer, edges: Buffer, commits: Buffer, starts: Buffer, above: int, /
) -> tuple[bytes, bytes, bytes, int, int] | None:
    """Return the row changes of transactions, and how many are left out.

    Those of tables whose ids are `above` that are left out; payload i lies in `data` from edges[i]
    to edges[i + 1] (int64), its timestamps are commits[i] and starts[i] (int64). The changes come
    as mutations and changes, to be given to `columns`; then, for each table, its id, rows, first
    and last commit_ts, oldest and newest schema version (int64), and last how many bytes the rows
    have. None if a payload isn't a Prewrite of nothing but row changes, or anything is wrong with
    it.

    Here it is always None.
    """
    return None


def columns(
    data: Buffer,
    commits: Buffer,
    starts: Buffer,
    mutations: bytes,
    changes: bytes,
    begin: int,
    end: int,
    /,
) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]:
    """Return the columns of changes[begin:end] as a part has them.

    They are commit_ts to kind, then where rows begin (int64) and the rows. ValueError if `scan`
    has found them elsewhere.
    """
    raise RuntimeError("nothing was found, so there are no changes")
