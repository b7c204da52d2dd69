"""Write the inverse of past changes as one SQL script for the upstream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sluice.etl.changes.formats.sql_scripts import printable_ascii
from sluice.etl.changes.formats.sql_text import literal
from sluice.etl.changes.write_plans.raw_changes import image_count
from sluice.etl.history.errors import UndoError
from sluice.etl.history.undo.inverse import InverseChanges
from sluice.etl.history.undo.statements import TableUndoSql
from sluice.etl.history.undo.transaction import PastChanges, TouchedTable
from sluice.tidb import tso

_MODE = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"
"""The mode that rows were written with: zero ids and zero dates are kept as they are."""


def for_upstream(reverses: Sequence[InverseChanges]) -> list[TableUndoSql]:
    """Return the tables under the names that they have in TiDB now.

    Raises UndoError for a table of which the relay log holds masked values: TiDB would get those.
    """
    for reverse in reverses:
        _check_clear(reverse.touched)
    return [TableUndoSql(reverse, reverse.touched.now, exact_floats=True) for reverse in reverses]


def _check_clear(touched: TouchedTable) -> None:
    for table in (touched.then, touched.now):
        masked = [c.source_name for c in table.columns if c.landed_mask]
        if masked:
            raise UndoError(
                f"the relay log holds masked values of {', '.join(masked)} of"
                f" {touched.now.full_name}: taken back by them, TiDB would lose the clear ones",
                hint=(
                    "take the rows from a backup of TiDB, or from its own past (SELECT ... AS OF"
                    " TIMESTAMP) while its GC keeps that"
                ),
            )


def script(past: PastChanges, tables: Sequence[TableUndoSql]) -> Iterator[bytes]:
    """Yield the script line by line, or statement by statement.

    It ends without COMMIT: the operator compares two numbers first. Nothing that comes from rows or
    names stands in a comment as it is.
    """
    reverses = [table.reverse for table in tables]
    yield from (
        b"-- " + line.encode("ascii", "backslashreplace") for line in _heading(past, reverses)
    )
    mode = _MODE
    if any(table.has_enum_without_element() for table in tables):
        yield (
            b"-- Not in strict mode: an ENUM without an element comes again, which is a warning"
            b" then."
        )
    else:
        mode = f"STRICT_TRANS_TABLES,{_MODE}"
    yield from _settings(mode, reverses)
    yield b"SET @undone = 0;"
    yield b"BEGIN;"
    expected = 0
    for table in tables:
        yield f"-- {printable_ascii(table.named.full_name)}".encode()
        for statement in table.statements():
            expected += statement.rows
            yield statement.sql + b";"
            yield b"SET @undone = @undone + ROW_COUNT();"
    yield f"SELECT @undone AS rows_undone, {expected} AS rows_expected;".encode()
    yield b"-- If they are the same: COMMIT. If they aren't, rows were changed since: ROLLBACK."
    yield b"-- Without either nothing is changed."


def _heading(past: PastChanges, reverses: Sequence[InverseChanges]) -> Iterator[str]:
    if past.first_ts == past.last_ts and past.transactions == 1:
        yield f"Takes back the transaction that was committed at {tso.text(past.last_ts)}:"
    else:
        yield (
            f"Takes back row changes of {past.transactions:,} transactions that were committed at"
            f" {tso.text(past.first_ts)} through {tso.text(past.last_ts)}:"
        )
    for reverse in reverses:
        counts = (
            (image_count(images), word)
            for images, word in (
                (reverse.again, "come again"),
                (reverse.left, "go"),
                (reverse.after, "become what they were"),
            )
        )
        text = ", ".join(f"{count:,} {word}" for count, word in counts if count)
        changed = f"{text} (rows)" if text else "nothing changed in the end"
        yield f"  {printable_ascii(reverse.touched.now.full_name)}: {changed}"
        if reverse.touched.added and reverse.rows:
            names = ", ".join(printable_ascii(column.name) for column in reverse.touched.added)
            yield f"    rows that come again have the defaults in columns added since: {names}"
    if past.others:
        who = "it" if past.transactions == 1 else "they"
        yield f"  Not of {', '.join(map(printable_ascii, past.others))}, which {who} changed too."
    if past.partial:
        yield f"  {past.partial:,} of the transactions made other changes, which stay."
    yield (
        "For TiDB, the upstream: replication brings the replica what this does, as any other"
        " change."
    )


def _settings(mode: str, reverses: Sequence[InverseChanges]) -> Iterator[bytes]:
    yield b"SET NAMES utf8mb4;"
    yield b"SET SESSION time_zone = '+00:00';"
    yield f"SET SESSION sql_mode = {literal(mode)};".encode()
    yield b"SET SESSION foreign_key_checks = 0;"
    if any(reverse.touched.now.auto_random_bits for reverse in reverses):
        yield b"SET SESSION allow_auto_random_explicit_insert = 1;"
