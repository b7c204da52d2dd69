"""Write the statements around LOAD DATA's text, and statements that need none.

The text's fields are those of `sluice.etl.changes.formats.load_data`. A server that must not get a
LOAD DATA gets the text as REPLACE statements.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.formats.sql_text import quote_name

STATEMENT_BYTES = 1 << 20


def load_statement(target: str, layout: LoadLayout, *, led: bool = False, also: str = "") -> str:
    """Return what follows ``LOAD DATA LOCAL INFILE '<name>' ``.

    `target`: the table's full name, quoted. `led`: the text has a line before its rows. `also`: an
    assignment to one more column, of what the others have been given.
    """
    targets: list[str] = []
    conversions: list[str] = []
    for column in layout.columns:
        if column in layout.left_out:
            targets.append("@left_out")
            continue
        if column not in layout.bits and column not in layout.hex:
            targets.append(quote_name(column))
            continue
        variable = f"@v{len(conversions)}"
        value = f"CAST({variable} AS UNSIGNED)" if column in layout.bits else f"UNHEX({variable})"
        conversions.append(f"{quote_name(column)}={value}")
        targets.append(variable)
    if also:
        conversions.append(also)
    return (
        f"REPLACE INTO TABLE {target} CHARACTER SET utf8mb4 FIELDS TERMINATED BY '\\t' ESCAPED BY"
        " '\\\\' LINES TERMINATED BY '\\n'"
        f" {'IGNORE 1 LINES ' if led else ''}({', '.join(targets)})"
        + (f" SET {', '.join(conversions)}" if conversions else "")
    )


def replace_statements(
    target: str, layout: LoadLayout, payload: Any, statement_bytes: int = STATEMENT_BYTES
) -> Iterator[bytes]:
    """Yield the same rows as REPLACE statements of about `statement_bytes`, or one row.

    For a session in which backslashes escape: what a field has escaped is escaped alike in a
    string.
    """
    forms = [
        (b"", b"") if c in layout.bits else (b"x'", b"'") if c in layout.hex else (b"'", b"'")
        for c in layout.columns
    ]
    kept = [column not in layout.left_out for column in layout.columns]
    names = ", ".join(map(quote_name, layout.written))
    head = f"REPLACE INTO {target} ({names}) VALUES\n".encode()
    rows: list[bytes] = []
    size = 0
    for line in bytes(payload).replace(b"'", b"\\'").split(b"\n")[:-1]:
        fields = itertools.compress(zip(forms, line.split(b"\t"), strict=True), kept)
        row = (
            b"("
            + b",".join(
                b"NULL" if field == b"\\N" else before + field + after
                for (before, after), field in fields
            )
            + b")"
        )
        if rows and size + len(row) > statement_bytes:
            yield head + b",\n".join(rows)
            rows, size = [], 0
        rows.append(row)
        size += len(row) + 2
    if rows:
        yield head + b",\n".join(rows)


def insert_statement(target: str, layout: LoadLayout, payload: Any, *, replaces: bool) -> bytes:
    """Return the rows as one INSERT, or one REPLACE.

    In the layout no field is anything but text. For a session in which backslashes escape.
    """
    rows = (
        bytes(payload)[:-1].replace(b"'", b"\\'").replace(b"\t", b"','").replace(b"\n", b"'),\n('")
    )
    # Only where a field begins a quote is followed by one backslash and an N, and that is NULL's.
    return _insert_head(target, layout.columns, replaces) + (b"('" + rows + b"')").replace(
        b"'\\N'", b"NULL"
    )


@functools.lru_cache(maxsize=4096)
def _insert_head(target: str, columns: tuple[str, ...], replaces: bool) -> bytes:  # noqa: FBT001 as a key
    names = ", ".join(map(quote_name, columns))
    return f"{'REPLACE' if replaces else 'INSERT'} INTO {target} ({names}) VALUES\n".encode(
        "utf-8", "surrogateescape"
    )
