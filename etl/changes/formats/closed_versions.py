"""Statements that end versions of rows, in tables that keep every one.

They find rows by key, byte for byte, as DELETE statements do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from sluice.etl.changes.formats.deletes import delete_head
from sluice.etl.changes.formats.sql_text import literal, quote_name, quote_table
from sluice.tidb.schema import Table

_KEYS_A_STATEMENT = 200
"""The server tries the keys one after another for each row, to find when it ended."""
_STATEMENT_BYTES = 1 << 19


def closing_statements(
    table: Table, keys: Sequence[bytes], times: Sequence[str], *, reopened: bool = False
) -> Iterator[tuple[range, bytes]]:
    """Yield (places of its keys, statement) that end the open versions of rows.

    `keys`: a condition a row, in the order in which the rows' versions end; `times`: when each
    ends. `reopened`: versions that ended later do so then, too.
    """
    until = quote_name(table.history[1]).encode()
    head = b"UPDATE " + quote_table(table).encode() + b" SET " + until + b" = "
    quoted = [literal(time).encode() for time in times]
    for places in _groups(keys):
        parts = [
            (time, [keys[place] for place in some])
            for time, some in itertools.groupby(places, quoted.__getitem__)
        ]
        value = (
            parts[0][0]
            if len(parts) == 1
            else b"CASE "
            + b"\n".join(b"WHEN " + b" OR ".join(some) + b" THEN " + time for time, some in parts)
            + b" END"
        )
        if reopened:
            conditions = [
                keys[place] + b" AND (%s IS NULL OR %s > %s)" % (until, until, quoted[place])
                for place in places
            ]
            yield places, head + value + b" WHERE " + b"\nOR ".join(conditions)
            continue
        found = b"\nOR ".join(keys[places.start : places.stop])
        yield places, head + value + b" WHERE " + until + b" IS NULL AND (" + found + b")"


def later_versions_deletes(
    table: Table, keys: Sequence[bytes], commit_ts: Sequence[int]
) -> Iterator[tuple[int, bytes]]:
    """Yield (keys, statement) that remove the versions of rows since a commit of each.

    `keys`: a condition a row; `commit_ts`: the first commit whose versions go.
    """
    column = quote_name(table.history[2]).encode()
    for places in _groups(keys):
        conditions = [b"%s AND %s >= %d" % (keys[at], column, commit_ts[at]) for at in places]
        yield len(places), delete_head(table) + b"\nOR ".join(conditions)


def _groups(keys: Sequence[bytes]) -> Iterator[range]:
    """Yield the places of keys, as many at a time as one statement takes."""
    first = size = 0
    for place, key in enumerate(keys):
        if place > first and (
            place - first == _KEYS_A_STATEMENT or size + len(key) > _STATEMENT_BYTES
        ):
            yield range(first, place)
            first, size = place, 0
        size += len(key)
    if first < len(keys):
        yield range(first, len(keys))
