"""Define the request for a bootstrap, from the command line and Airflow's form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.etl.copy.dumpling import CsvFormat, DumplingOptions

__all__ = ["BootstrapRequest", "names_from_lines", "request_from_form"]

_ESCAPES = {"\\r": "\r", "\\n": "\n", "\\t": "\t"}


@dataclass(frozen=True, slots=True)
class BootstrapRequest:
    """A person's request for a bootstrap.

    `url`: a Dumpling folder's, TIDB, or SNAPSHOT. `globs`: names of tables (schema.table, * and
    ?), () for all that the rules want. `into`: databases downstream that may hold other tables.
    `by`: the user who asks.
    """

    url: str
    options: DumplingOptions = field(default_factory=DumplingOptions)
    globs: tuple[str, ...] = ()
    into: tuple[str, ...] = ()
    by: str = "somebody"


def request_from_form(form: Mapping[str, Any], by: str) -> BootstrapRequest:
    r"""Return the request from a form's fields.

    They are `source`, `tables`, `into`, and of a dump's files `csv_separator`, `csv_delimiter`,
    `csv_line_terminator` (None where the header shows it; with \r, \n and \t for these),
    `csv_null_value`, `csv_header`, `escape_backslash`.
    """
    source = form["source"].strip()
    csv = CsvFormat(
        separator=_unescaped(form["csv_separator"]),
        delimiter=form["csv_delimiter"],
        terminator=_unescaped(form["csv_line_terminator"]),
        header=form["csv_header"],
        null=form["csv_null_value"],
    )
    return BootstrapRequest(
        source if "://" in source else str(Path(source).absolute()),
        DumplingOptions(csv, escapes=form["escape_backslash"]),
        names_from_lines(form["tables"]),
        names_from_lines(form["into"]),
        by,
    )


def names_from_lines(lines: Iterable[str] | None) -> tuple[str, ...]:
    """Return the names in a form's field, a name a line; empty lines are ignored."""
    return tuple(line.strip() for line in lines or () if line.strip())


def _unescaped(text: str | None) -> str | None:
    for spelled, meant in _ESCAPES.items():
        text = text.replace(spelled, meant) if text is not None else None
    return text
