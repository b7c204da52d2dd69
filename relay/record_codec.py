"""Encode records for a worker as one text, in which each distinct table stands once.

Window after window has the same tables, whole, and the same DDL before it that moved rows. In a
minute of small windows each of them was repeated some hundred times, in a text that goes through
Spark's JVM. Here they stand in front, and a record has their numbers:

    {"tables":[{"<id>":{…},…},…],
     "moved":[{"<job id>":{…},…},…],
     "records":[{"tables":[0,1],"moved":[],…},…],
     "rest":…}

They count from 0 through all objects of a list; of two versions of a table the later one is in
another object.

What a process has written or read before isn't converted to JSON, or parsed, once more, from text
to text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sluice.relay.json_cache import JsonMemberCache, to_text

__all__ = ["RecordEncoder", "read_records"]

_value_caches = {"tables": JsonMemberCache(), "moved": JsonMemberCache()}


class RecordEncoder:
    """Take records one after the other.

    Members that aren't `tables` and `moved` stay as they are.
    """

    def __init__(self) -> None:
        self._distinct = {name: _DistinctValues(known) for name, known in _value_caches.items()}
        self._records: list[str] = []
        self._characters = 0

    @property
    def characters(self) -> int:
        """Return about how many characters the text has."""
        return self._characters + sum(distinct.characters for distinct in self._distinct.values())

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a record.

        `tables` are JSON values by id (decimal string), `moved` is a list of objects with a
        `job_id`; it may lack both. The caller must not change them afterwards.
        """
        numbers = {
            name: [
                self._distinct[name].number(key, value)
                for key, value in _named_values(name, record[name])
            ]
            for name in self._distinct
            if name in record
        }
        text = to_text({**record, **numbers})
        self._records.append(text)
        self._characters += len(text) + 1

    def to_text(self, rest: Any = None) -> str:
        """Return the text with all records and `rest`, a JSON value."""
        members = [f'"{name}":{distinct.to_text()}' for name, distinct in self._distinct.items()]
        return (
            f'{{{",".join(members)},"records":[{",".join(self._records)}],"rest":{to_text(rest)}}}'
        )


def read_records(text: str) -> tuple[list[dict[str, Any]], Any]:
    """Parse a text: its records, and the rest.

    Values that were read before under the same id are the same objects: the caller must not change
    them. Raises ValueError if it isn't such a text.
    """
    document = _read(text) or json.loads(text)
    try:
        found = {
            name: [member for one in document[name] for member in one.items()]
            for name in _value_caches
        }
        records = [_with_values(record, found) for record in document["records"]]
        return records, document["rest"]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"the text doesn't hold records: {error!r}") from error


def _with_values(
    record: dict[str, Any], found: Mapping[str, list[tuple[str, Any]]]
) -> dict[str, Any]:
    """Return a record with values in place of their numbers."""
    for name in found.keys() & record.keys():
        if min(record[name], default=0) < 0:
            raise IndexError(f"{name} are counted from 0")
    if "tables" in record:
        record["tables"] = dict(map(found["tables"].__getitem__, record["tables"]))
    if "moved" in record:
        record["moved"] = [found["moved"][number][1] for number in record["moved"]]
    return record


def _named_values(name: str, values: Any) -> Iterable[tuple[str, Any]]:
    """Return the values of a record's member, by the names under which they are cached."""
    return (
        values.items() if name == "tables" else ((str(move.get("job_id")), move) for move in values)
    )


class _DistinctValues:
    """Values by name, each distinct one once, as text, in the order in which they came.

    `characters`: of the texts.
    """

    def __init__(self, known: JsonMemberCache) -> None:
        self._known = known
        self._texts: list[list[str]] = []
        """The texts of the members, for each object."""
        self._names: set[str] = set()
        """Those of the last object."""
        self._numbers: dict[str, int] = {}
        """The number of each text."""
        self._last: dict[str, tuple[Any, int]] = {}
        """The value that came last under a name, and its number."""
        self.characters = 0

    def number(self, name: str, value: Any) -> int:
        """Return the value's number among the texts, and add it if it is new."""
        last = self._last.get(name)
        if last is not None and last[0] is value:
            return last[1]
        text = self._known.member(name, value)
        count = len(self._numbers)
        number = self._numbers.setdefault(text, count)
        if number == count:
            self._append(name, text)
        self._last[name] = value, number
        return number

    def _append(self, name: str, text: str) -> None:
        if not self._texts or name in self._names:
            self._texts.append([])
            self._names.clear()
        self._texts[-1].append(text)
        self._names.add(name)
        self.characters += len(text) + 1

    def to_text(self) -> str:
        """Return the text of a list of objects."""
        return "[" + ",".join([f"{{{','.join(texts)}}}" for texts in self._texts]) + "]"


def _read(text: str) -> dict[str, Any] | None:
    """Return the text's object; None if it isn't written as `RecordEncoder` does it."""
    found: dict[str, Any] = {}
    at = 0
    try:
        for name, known in _value_caches.items():
            opening = f'{"," if at else "{"}"{name}":['
            if not text.startswith(opening, at):
                return None
            found[name], at = _parse_list(text, at + len(opening), known)
        if not text.startswith(",", at):
            return None
        found |= json.loads("{" + text[at + 1 :])
        return found
    except (ValueError, IndexError):  # of an id that is none
        return None


def _parse_list(text: str, at: int, known: JsonMemberCache) -> tuple[list[dict[str, Any]], int]:
    """Parse a list from its first object, or end, at this offset, and return it and its end."""
    found: list[dict[str, Any]] = []
    while text.startswith("{", at):
        members, at = known.read(text, at + 1)
        found.append(members)
        if not text.startswith(",{", at):
            break
        at += 1
    if not text.startswith("]", at):
        raise ValueError("neither another object nor the end")
    return found, at + 1
