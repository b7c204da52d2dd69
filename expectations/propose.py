"""Propose a first suite for a table, from its schema and a profile of its rows.

What the schema promises fails the run when it isn't so; what is only so today, by the profile,
warns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime

from sluice.expectations.dataset import ColumnShape, Dataset, Reference, TableShape
from sluice.expectations.profile import ColumnProfile, TableProfile, family, profile, without_parent
from sluice.expectations.suite import REPLICATION, Expectation, Suite
from sluice.tidb.table_name import TableName, full_name

__all__ = ["propose", "propose_for_replication"]

_MAX_AGE_H = 7 * 24
_RANGE_FACTOR = 10
_MIN_FRESHNESS_H = 24
_CHANGING = re.compile(r"current_timestamp|now\(", re.IGNORECASE)
_OF_ANOTHER = re.compile(r"(.+?)_?id\Z", re.IGNORECASE)


def propose(place: Dataset, name: str, tables: frozenset[str]) -> Suite:
    """Propose a suite for one of `tables`. Raises SluiceError."""
    shape = place.shape(name)
    rows = profile(place, shape)
    references = list(_references(place, shape, rows, tables))
    found = [
        *_of_the_table(shape, rows),
        *_keys(shape),
        *_not_null(shape),
        *_values(shape, rows, references),
        *references,
        *_fresh(place, shape, rows),
    ]
    return Suite(name, tuple(found))


def propose_for_replication() -> Suite:
    """Propose the suite of the replication itself."""
    return Suite(
        REPLICATION,
        (
            Expectation(
                "expect_windows_without_gaps",
                {},
                "fail",
                "each window begins where the one before ends",
            ),
            Expectation(
                "expect_lag_below",
                {"seconds": 300},
                "warn",
                "how far the checkpoint is behind the clock",
            ),
            Expectation(
                "expect_usual_changes",
                {"factor": 10, "days": 7, "fewest": 1000},
                "warn",
                "changes per table and hour against the median of the same hour of the days before",
            ),
            Expectation(
                "expect_changes_where_there_always_were",
                {"hours": 1, "days": 7},
                "warn",
                "tables without a change, though each day before had some in the same hours",
            ),
        ),
    )


def _of_the_table(shape: TableShape, rows: TableProfile) -> Iterator[Expectation]:
    types = {column.name: column.type for column in shape.columns}
    yield Expectation("expect_columns_and_types", {"columns": types}, "fail", "the schema")
    if rows.rows:
        yield Expectation(
            "expect_table_row_count_to_be_between", {"min_value": max(1, rows.rows // 2)}, "warn",
            f"there were {rows.rows:,} rows, and half of them gone would be worth a look",
        )  # fmt: skip


def _keys(shape: TableShape) -> Iterator[Expectation]:
    for number, key in enumerate(dict.fromkeys(shape.keys)):
        why = "the table's first key" if number == 0 else "a unique key"
        yield Expectation("expect_key_to_be_unique", {"columns": list(key)}, "fail", why)


def _not_null(shape: TableShape) -> Iterator[Expectation]:
    for column in shape.columns:
        if not column.nullable:
            yield Expectation(
                "expect_column_values_to_not_be_null",
                {"column": column.name},
                "fail",
                "NOT NULL in the schema",
            )


def _values(
    shape: TableShape, rows: TableProfile, references: list[Expectation]
) -> Iterator[Expectation]:
    own = {name for key in shape.keys for name in key} | {
        n for r in references for n in r.arguments["columns"]
    }
    for column in shape.columns:
        facts = rows.columns[column.name]
        if facts.values:
            values = (
                [_number(value) for value in facts.values]
                if family(column) == "number"
                else [*facts.values]
            )
            yield Expectation(
                "expect_column_values_to_be_in_set",
                {"column": column.name, "value_set": values},
                "warn",
                f"{len(values)} different values in {rows.rows:,} rows",
            )
        elif family(column) == "number" and column.name not in own and facts.greatest is not None:
            yield from _range(column, facts)


def _range(column: ColumnShape, facts: ColumnProfile) -> Iterator[Expectation]:
    """Return a range with room for growth, never below zero if no value was.

    Nothing where there is none left.
    """
    least, greatest = float(facts.least or 0), float(facts.greatest or 0)
    most = max(abs(least), abs(greatest)) * _RANGE_FACTOR
    if not math.isfinite(most):
        return
    limit = _power(most)
    yield Expectation(
        "expect_column_values_to_be_between",
        {"column": column.name, "min_value": 0 if least >= 0 else -limit, "max_value": limit},
        "warn",
        f"they were between {facts.least} and {facts.greatest}",
    )


def _power(value: float) -> int:
    """Return the smallest power of ten that isn't less than `value`."""
    power = 1
    while power < value:
        power *= 10
    return power


def _number(text: str) -> int | float:
    return float(text) if "." in text or "e" in text.lower() else int(text)


def _references(
    place: Dataset, shape: TableShape, rows: TableProfile, tables: frozenset[str]
) -> Iterator[Expectation]:  # fmt: skip
    for reference in shape.references:
        if reference.parent in tables:
            yield _reference(reference, "fail", "a foreign key of the schema")
    for guess in _guess_references(place, shape, tables) if rows.rows else ():
        ((orphans,),) = place.ask(
            f"SELECT COUNT(*) FROM {without_parent(place, shape.name, guess)}"
        )
        if not orphans:
            yield _reference(guess, "warn", "guessed by the names: every row had its parent")


def _reference(reference: Reference, severity: str, why: str) -> Expectation:
    arguments = {
        "columns": list(reference.columns), "parent": reference.parent,
        "parent_columns": list(reference.parent_columns),
    }  # fmt: skip
    return Expectation("expect_references_to_have_parents", arguments, severity, why)


def _guess_references(
    place: Dataset, shape: TableShape, tables: frozenset[str]
) -> Iterator[Reference]:
    """Guess references: ``customer_id`` may name a row of ``customer`` or ``customers``.

    The other table is of the same schema, with a key of the same type.
    """
    schema = TableName.parse(shape.name).schema
    by_name = {name.lower(): name for name in tables}
    known = {name for reference in shape.references for name in reference.columns} | {
        *shape.primary_key[:1]
    }
    for column in shape.columns:
        match = _OF_ANOTHER.match(column.name)
        if match is None or column.name in known:
            continue
        word = match[1].lower()
        candidates = [full_name(schema, word + ending).lower() for ending in ("", "s", "es")]
        parent = next((by_name[one] for one in candidates if one in by_name), None)
        if parent is None or parent == shape.name:
            continue
        key = place.shape(parent).primary_key
        types = {one.name: one.type for one in place.shape(parent).columns}
        if len(key) == 1 and types[key[0]] == column.type:
            yield Reference((column.name,), parent, key)


def _fresh(place: Dataset, shape: TableShape, rows: TableProfile) -> Iterator[Expectation]:
    """Propose freshness of columns with creation or change times, if some row is recent.

    Recent: of the last days.
    """
    for column in shape.columns:
        newest = rows.columns[column.name].greatest
        if family(column) != "moment" or newest is None or not _tells_when(column):
            continue
        age_h = _age_h(newest, place.at_ms)
        if age_h is not None and -_MIN_FRESHNESS_H < age_h < _MAX_AGE_H:
            hours = max(_MIN_FRESHNESS_H, 3 * int(age_h))
            yield Expectation(
                "expect_newest_to_be_recent", {"column": column.name, "hours": hours}, "warn",
                f"the newest was {max(0, int(age_h))} hours old",
            )  # fmt: skip


def _tells_when(column: ColumnShape) -> bool:
    return bool(_CHANGING.search(f"{column.default} {column.extra}")) or bool(
        re.search(
            r"(created|updated|modified|changed|inserted|_at\Z|_time\Z|\Aat\Z|\Amade\Z)",
            column.name.lower(),
        )
    )


def _age_h(text: str, at_ms: int) -> float | None:
    try:
        moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None
    return (at_ms / 1000 - moment.timestamp()) / 3600
