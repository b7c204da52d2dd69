"""Compare a dump's schema file with the upstream's own definition.

Dumpling writes SHOW CREATE TABLE, a column a line. Tables are never made from these files. They
are read only to find out that a dump was taken from another definition than TiDB had at the dump's
position.
"""

from __future__ import annotations

import re

from sluice.etl.copy.errors import CopyError
from sluice.tidb import column_types
from sluice.tidb.schema import Table

_COLUMN = re.compile(
    r"^  `((?:[^`]|``)+)` ((?:[^\s('`]|\((?:[^()']|'(?:[^'\\]|\\.|'')*')*\))+)", re.MULTILINE
)
_TYPES = column_types.NAMES | {column_types.VAR_STRING: "varchar"}


def check_schema_file(file: str, text: str, table: Table) -> None:
    """Raise CopyError if the CREATE TABLE in `text` has other columns than `table`."""
    there = [(name.replace("``", "`"), _base_type(kind)) for name, kind in _COLUMN.findall(text)]
    wanted = [
        (c.name, _type(c.tp, is_bytes=c.kind == "binary"))
        for c in table.columns
        if c.public and not c.hidden
    ]
    if there == wanted:
        return
    odd = next(
        (f"{a[0]} {a[1]} instead of {b[0]} {b[1]}" for a, b in zip(there, wanted) if a != b), ""
    )
    what = odd or f"{len(there)} columns instead of {len(wanted)}"
    raise CopyError(
        f"{file}: {table.full_name} is another table there than TiDB had at the dump's position:"
        f" {what}. Was the table altered while it was dumped, or is the dump of another cluster?"
        " Dump again"
    )


def _base_type(kind: str) -> str:
    return kind.split("(", 1)[0].lower()


def _type(tp: int, *, is_bytes: bool) -> str:
    name = _TYPES.get(tp, "?")
    return column_types.BYTES_NAMES.get(name, name) if is_bytes else name
