"""Define a suite: the expectations of one table or of the replication, as one file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import RequestError, SluiceError
from sluice.relay.quality import SEVERITIES
from sluice.tidb.table_name import names_table

__all__ = [
    "DATASETS",
    "REPLICATION",
    "Expectation",
    "QualityError",
    "QualityFailedError",
    "Suite",
    "SuiteError",
]


class SuiteError(RequestError):
    """An invalid file with expectations; names the file and the place in it."""

    hint = "correct the file"


class QualityError(RequestError):
    """The requested data can't be checked."""


class QualityFailedError(SluiceError):
    """Expectations aren't met that fail the run."""

    hint = (
        "look at the rows in the Data Docs: correct the data, or the expectation if it is what was"
        " wrong"
    )


REPLICATION = "replication"
"""The suite about the replication itself."""
DATASETS = ("downstream", "lake", "copy")
"""The datasets that tables can be checked on."""
_KINDS = re.compile(r"(expect_[a-z0-9_]+|unexpected_rows_expectation)\Z")
_OWN = ("expectation", "severity", "why", "on")


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation: its name and its arguments.

    The name is that of Great Expectations, or of `sluice.expectations.gx.custom`.
    """

    expectation: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    severity: str = "fail"
    """One of SEVERITIES."""
    why: str = ""
    """The reason for the expectation, for people."""
    on: tuple[str, ...] = ()
    """Datasets on which it is checked; empty: wherever its suite is checked."""

    @property
    def about(self) -> str:
        """Return the column, or columns; empty for the whole table."""
        found = [
            self.arguments.get(key)
            for key in ("column", "column_A", "column_B", "column_list", "columns")
        ]
        names = [
            ", ".join(map(str, one)) if isinstance(one, list | dict) else str(one)
            for one in found
            if one
        ]
        return ", ".join(names)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Expectation:
        """Parse an expectation's table of a file. Raises SuiteError with the reason."""
        kind, severity = document.get("expectation"), document.get("severity", "fail")
        if not isinstance(kind, str) or not _KINDS.match(kind):
            raise SuiteError(
                f"expectation = {kind!r}: its name is expected, such as"
                " expect_column_values_to_be_between"
            )
        if severity not in SEVERITIES:
            raise SuiteError(f"severity = {severity!r}: {', '.join(SEVERITIES)} are possible")
        where, why = document.get("on", []), document.get("why", "")
        if not isinstance(where, list) or not set(where) <= set(DATASETS):
            raise SuiteError(f"on = {where!r}: a list of {', '.join(DATASETS)} is expected")
        if not isinstance(why, str):
            raise SuiteError(f"why = {why!r}: a text is expected")
        arguments = {key: value for key, value in document.items() if key not in _OWN}
        return cls(kind, arguments, severity, why, tuple(where))


@dataclass(frozen=True, slots=True)
class Suite:
    """Expectations of a table (``schema.table`` downstream), or of the replication."""

    name: str
    expectations: tuple[Expectation, ...]

    @classmethod
    def parse(cls, text: str, path: str) -> Suite:
        """Parse the content of a file; `path` is for errors. Raises SuiteError."""
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SuiteError(f"{path}: {error}") from None
        name, found = document.get("table"), document.get("expect", [])
        if unknown := document.keys() - {"table", "expect"}:
            raise SuiteError(
                f"{path}: unknown {', '.join(sorted(unknown))}; there are table and [[expect]]"
            )
        if not isinstance(name, str) or (name != REPLICATION and not names_table(name)):
            raise SuiteError(
                f'{path}: table = {name!r}: "schema.table" is expected, or "{REPLICATION}"'
            )
        if not isinstance(found, list):
            raise SuiteError(f"{path}: write [[expect]], with two brackets, above each expectation")
        return cls(name, tuple(_each(found, path)))

    def for_place(self, on: str) -> Suite:
        """Return the suite with only the expectations that apply to the dataset `on`."""
        return Suite(self.name, tuple(e for e in self.expectations if not e.on or on in e.on))


def _each(found: list[Any], path: str) -> list[Expectation]:
    expectations = []
    for number, one in enumerate(found, 1):
        try:
            expectations.append(Expectation.from_document(one))
        except SuiteError as error:
            raise SuiteError(f"{path}: expectation {number}: {error}") from None
    return expectations
