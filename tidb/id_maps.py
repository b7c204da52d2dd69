"""Tables and schemas of a JSON document, by id.

A window record may describe thousands of tables, of which its reader needs a few, or none. So each
is parsed at its first use, once, and a document that is passed on is written as it came. (Parsing a
table of 20 columns takes 50 microseconds, writing it 170.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar

from sluice.tidb.schema import Schema, Table

T = TypeVar("T", Schema, Table)
Document = Mapping[str, Any]


class LazyTables(Mapping[int, T | None]):
    """A mapping from ids to tables or schemas; None for one that is gone."""

    __slots__ = ("_documents", "_found", "_parse")

    def __init__(
        self, documents: Mapping[str, Document | None], parse: Callable[[Document], T]
    ) -> None:
        self._documents = documents
        self._parse: Callable[[Document], T] = parse
        self._found: dict[int, T | None] = {}

    def __getitem__(self, key: int) -> T | None:
        """Parse an entry. Raises SchemaError for a document that can't be understood."""
        if key not in self._found:
            document = self._documents[str(key)]
            self._found[key] = self._parse(document) if document else None
        return self._found[key]

    def __iter__(self) -> Iterator[int]:
        return map(int, self._documents)

    def __len__(self) -> int:
        return len(self._documents)

    def __contains__(self, key: object) -> bool:
        return str(key) in self._documents

    def __repr__(self) -> str:
        return f"ById({list(self)})"

    @property
    def documents(self) -> Mapping[str, Document | None]:
        """Return the JSON it was made from."""
        return self._documents


class LiveTables(MutableMapping[int, Table]):
    """Tables by id that come and go.

    One that came as a document is parsed at its first use.
    """

    __slots__ = ("_documents", "_found")

    def __init__(self, documents: Mapping[int, Document] | None = None) -> None:
        self._documents: dict[int, Document] = dict(documents or {})
        self._found: dict[int, Table] = {}

    def __getitem__(self, key: int) -> Table:
        """Parse an entry. Raises SchemaError for a document that can't be understood."""
        if key not in self._found:
            self._found[key] = Table.from_json(self._documents[key])
        return self._found[key]

    def __setitem__(self, key: int, table: Table) -> None:
        self._documents.pop(key, None)
        self._found[key] = table

    def __delitem__(self, key: int) -> None:
        known = self._found.pop(key, None)
        if self._documents.pop(key, None) is None and known is None:
            raise KeyError(key)

    def __iter__(self) -> Iterator[int]:
        yield from self._documents
        yield from (key for key in self._found if key not in self._documents)

    def __len__(self) -> int:
        return len(self._documents.keys() | self._found.keys())

    def __contains__(self, key: object) -> bool:
        return key in self._documents or key in self._found

    def copy(self) -> LiveTables:
        """Return the same tables, to be changed independently."""
        other = LiveTables(self._documents)
        other._found = dict(self._found)
        return other

    def documents(self) -> dict[str, Document | None]:
        """Return the documents by id as text; those that came are passed on as they came."""
        return {str(key): self._documents.get(key) or self[key].to_json() for key in self}


class _LastMadeByTable:
    """Results by table: windows have the same tables again and again."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, Any]] = {}
        self._columns = 0

    def keep(self, table: Table, source: object, made: object) -> None:
        """Keep what was made of `source`, a table or its document."""
        if table.id not in self._known:
            self._columns += len(table.columns)
        if self._columns > _MAX_CACHED_COLUMNS:
            self._known.clear()
            self._columns = len(table.columns)
        self._known[table.id] = source, made


class _DocumentCache(_LastMadeByTable):
    """The documents of tables."""

    def __call__(self, table: Table) -> Document:
        known: tuple[Table, Document] | None = self._known.get(table.id)
        if known is not None and known[0] is table:
            return known[1]
        document = table.to_json()
        self.keep(table, table, document)
        return document


def schemas_by_id(documents: Mapping[str, Document | None] | None) -> Mapping[int, Schema | None]:
    """Parse a JSON object with ids for keys."""
    return LazyTables(documents or {}, Schema.from_json)


def tables_by_id(documents: Mapping[str, Document | None] | None) -> Mapping[int, Table | None]:
    """Parse a JSON object with ids for keys."""
    return LazyTables(documents or {}, _parse_table)


class _ParsedCache(_LastMadeByTable):
    """Tables by their documents."""

    def __call__(self, document: Document) -> Table:
        known: tuple[Document, Table] | None = self._known.get(document.get("id"))
        if known is not None and (known[0] is document or known[0] == document):
            return known[1]
        table = Table.from_json(document)
        self.keep(table, document, table)
        return table


_MAX_CACHED_COLUMNS = 100_000
"""Columns of the cached tables, in total, at 1 KB each."""
_parse_table = _ParsedCache()
_document_cache = _DocumentCache()


def names_by_id(tables: Mapping[int, Table | None]) -> Iterator[tuple[int, str, str]]:
    """Yield each table's id, schema and name, without parsing it."""
    if not isinstance(tables, LazyTables):
        yield from (
            (i, table.schema_name, table.name) for i, table in tables.items() if table is not None
        )
        return
    for key, document in tables.documents.items():
        if document:
            yield int(key), str(document.get("schema_name", "")), str(document.get("name", ""))


def to_json(
    found: Mapping[int, Schema | None] | Mapping[int, Table | None],
) -> dict[str, Document | None]:
    """Return the JSON object with ids as keys, which the two functions above parse."""
    if isinstance(found, LazyTables):
        return dict(found.documents)
    if isinstance(found, LiveTables):
        return found.documents()
    return {str(key): _document(value) for key, value in found.items()}


def _document(value: Schema | Table | None) -> Document | None:
    if value is None:
        return None
    return _document_cache(value) if isinstance(value, Table) else value.to_json()
