"""Define a dataset: tables that answer SELECTs, all of them as of one moment."""

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
    """The type in small letters, without display widths: ``bigint unsigned``, ``decimal(12,2)``."""
    nullable: bool = True
    default: str = ""
    extra: str = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key: `columns` name a row of `parent` (``schema.table``) by `parent_columns`."""

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
        """Return the primary key's columns, or a unique key's in its place; () without a key."""
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
        """Return the rows of a SELECT; its tables as `table` names them, names in backquotes.

        Raises SluiceError.
        """

    def table(self, name: str) -> str:
        """Return how a statement names a table (``schema.table``). Raises QualityError."""

    def shape(self, name: str) -> TableShape:
        """Return a table's shape. Raises QualityError if the table is missing."""

    def tables(self) -> Sequence[str]:
        """Return the names of all tables."""


_CURRENT_DATASET: ContextVar[Dataset] = ContextVar("place")
_CURRENT_SETTINGS: ContextVar[Settings] = ContextVar("settings")


@contextmanager
def using(place: Dataset, settings: Settings) -> Iterator[None]:
    """Make `place` and `settings` current for expectations that are checked meanwhile."""
    token, of_settings = _CURRENT_DATASET.set(place), _CURRENT_SETTINGS.set(settings)
    try:
        yield
    finally:
        _CURRENT_DATASET.reset(token)
        _CURRENT_SETTINGS.reset(of_settings)


def pipeline() -> Settings:
    """Return the settings of the pipeline that is being checked.

    Raises DefectError outside of `using`.
    """
    try:
        return _CURRENT_SETTINGS.get()
    except LookupError:
        raise DefectError("no dataset is open for an expectation") from None


def current() -> Dataset:
    """Return the current dataset. Raises DefectError outside of `using`."""
    try:
        return _CURRENT_DATASET.get()
    except LookupError:
        raise DefectError("no dataset is open for an expectation") from None


def quoted(name: str) -> str:
    """Quote a column's name for a statement."""
    return "`" + name.replace("`", "``") + "`"
