"""Where tables are looked at: something that answers SELECTs, all of them as of one moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.errors import DefectError
from sluice.etl.settings import Settings

__all__ = [
    "ColumnShape",
    "Dataset",
    "Reference",
    "TableShape",
    "current",
    "pipeline",
    "quoted",
    "using",
]


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """A column as its server describes it."""

    name: str
    type: str
    """In small letters, without what doesn't count (display widths): ``bigint unsigned``,
    ``decimal(12,2)``.
    """
    nullable: bool = True
    default: str = ""
    extra: str = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key: these columns, and the table (``schema.table``) and columns that they name a
    row of.
    """

    columns: tuple[str, ...]
    parent: str
    parent_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table. `keys`: the primary key first, then unique ones."""

    name: str
    columns: tuple[ColumnShape, ...]
    keys: tuple[tuple[str, ...], ...] = ()
    references: tuple[Reference, ...] = ()

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Its columns, or those of a unique key in its place; none if there is no key."""
        return self.keys[0] if self.keys else ()


class Dataset(Protocol):
    """Tables as of one moment."""

    on: str
    """One of `sluice.expectations.suite.DATASETS`."""
    ts: int
    """TSO; 0 if it isn't known, as of a copy."""
    at_ms: int
    """The same as Unix ms: what is fresh is measured by it."""

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a SELECT; its tables as `table` names them, names in backquotes.

        Raises SluiceError.
        """

    def table(self, name: str) -> str:
        """A table (``schema.table``), for a statement. Raises QualityError if it isn't there."""

    def shape(self, name: str) -> TableShape:
        """What a table is. Raises QualityError if it isn't there."""

    def tables(self) -> Sequence[str]:
        """What there is."""


_CURRENT_DATASET: ContextVar[Dataset] = ContextVar("place")
_CURRENT_SETTINGS: ContextVar[Settings] = ContextVar("settings")


@contextmanager
def using(place: Dataset, settings: Settings) -> Iterator[None]:
    """Expectations that are looked at meanwhile ask there, of that pipeline."""
    token, of_settings = _CURRENT_DATASET.set(place), _CURRENT_SETTINGS.set(settings)
    try:
        yield
    finally:
        _CURRENT_DATASET.reset(token)
        _CURRENT_SETTINGS.reset(of_settings)


def pipeline() -> Settings:
    """Whose expectation is being looked at. Raises DefectError outside of `using`."""
    try:
        return _CURRENT_SETTINGS.get()
    except LookupError:
        raise DefectError("an expectation is looked at nowhere") from None


def current() -> Dataset:
    """Where the expectation is being looked at. Raises DefectError outside of `using`."""
    try:
        return _CURRENT_DATASET.get()
    except LookupError:
        raise DefectError("an expectation is looked at nowhere") from None


def quoted(name: str) -> str:
    """A column's name in a statement."""
    return "`" + name.replace("`", "``") + "`"
