"""Define the project's own expectations.

They query `sluice.expectations.dataset.current()` in SQL that servers and Spark both understand,
and the server computes it. None of them reads more than a few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, ClassVar

from great_expectations.expectations.expectation import BatchExpectation

from sluice.expectations.dataset import Dataset, Reference, current, pipeline, quoted
from sluice.expectations.gx.examples import MAX_EXAMPLES, as_text, example_rows
from sluice.expectations.profile import without_parent
from sluice.expectations.suite import QualityError
from sluice.expectations.sum_drift import sum_changes
from sluice.expectations.upstream_rows import compared_with_upstream
from sluice.tidb import moments, tso

__all__ = ["FOUND", "OWN", "Found", "OwnExpectation"]

_MS_PER_H = 3_600_000


@dataclass(frozen=True, slots=True)
class Found:
    """Result of an expectation: whether it is met, the observation in words, counterexamples.

    The counterexamples are rows.
    """

    met: bool
    observed: str
    rows: Sequence[dict[str, str]] = ()

    @classmethod
    def as_expected(cls, observed: str) -> Found:
        """Make a finding that meets the expectation."""
        return cls(met=True, observed=observed)

    @classmethod
    def otherwise(cls, observed: str, rows: Sequence[dict[str, str]] = ()) -> Found:
        """Make a finding that fails the expectation."""
        return cls(met=False, observed=observed, rows=rows)


FOUND: ContextVar[dict[int, Found]] = ContextVar("found")
"""The findings, by the number that an expectation has in its suite."""


class OwnExpectation(BatchExpectation):  # type: ignore[misc] # untyped as they are imported
    """An expectation of Sluice's own; `table` is filled in from the suite."""

    table: str = ""
    metric_dependencies: ClassVar[tuple[str, ...]] = ()
    domain_keys: ClassVar[tuple[str, ...]] = ("batch_id",)

    def statement(self) -> str:
        """Describe in a sentence what is expected."""
        raise NotImplementedError

    def look(self, place: Dataset) -> Found:
        """Check the expectation. Raises SluiceError."""
        raise NotImplementedError

    def _validate(
        self, metrics: Any, runtime_configuration: Any = None, execution_engine: Any = None
    ) -> dict[str, Any]:
        found = self.look(current())
        # what is returned beside a yes or no would be left out
        FOUND.get()[(self.meta or {})["number"]] = found
        return {"success": found.met}


def _other_name(columns: Sequence[str]) -> str:
    """Return a name that none of the columns has."""
    taken, name = {column.lower() for column in columns}, "n"
    while name in taken:
        name += "n"
    return name


class ExpectKeyToBeUnique(OwnExpectation):
    """Expect no two rows to have the same values in these columns.

    Rows with a NULL among them don't count.
    """

    columns: list[str]

    def statement(self) -> str:
        return f"No two rows have the same {', '.join(self.columns)}."

    def look(self, place: Dataset) -> Found:
        names, count = ", ".join(map(quoted, self.columns)), quoted(_other_name(self.columns))
        given = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in self.columns)
        groups = (
            f"SELECT {names}, COUNT(*) AS {count} FROM {place.table(self.table)} WHERE {given}"
            f" GROUP BY {names} HAVING COUNT(*) > 1"
        )
        ((keys, rows),) = place.ask(f"SELECT COUNT(*), SUM({count}) FROM ({groups}) AS `twice`")
        if not keys:
            return Found.as_expected("all different")
        examples = place.ask(f"{groups} LIMIT {MAX_EXAMPLES}")
        return Found.otherwise(
            f"{keys:,} keys in {int(rows):,} rows", example_rows([*self.columns, "rows"], examples)
        )  # fmt: skip


class ExpectReferencesToHaveParents(OwnExpectation):
    """Every row's reference names a row of the parent.

    A reference with a NULL in it names none, and is right.
    """

    columns: list[str]
    parent: str
    parent_columns: list[str]

    def statement(self) -> str:
        return (
            f"{', '.join(self.columns)} names a row of {self.parent}"
            f" ({', '.join(self.parent_columns)})."
        )

    def look(self, place: Dataset) -> Found:
        reference = Reference(tuple(self.columns), self.parent, tuple(self.parent_columns))
        orphans = without_parent(place, self.table, reference)
        ((count,),) = place.ask(f"SELECT COUNT(*) FROM {orphans}")
        if not count:
            return Found.as_expected("every row has its parent")
        names = list(dict.fromkeys([*place.shape(self.table).primary_key, *self.columns]))
        select = ", ".join(f"c.{quoted(name)}" for name in names)
        return Found.otherwise(
            f"{count:,} rows without parent",
            example_rows(names, place.ask(f"SELECT {select} FROM {orphans} LIMIT {MAX_EXAMPLES}")),
        )  # fmt: skip


class ExpectColumnsAndTypes(OwnExpectation):
    """The table has these columns, of these types, and no others. `columns`: types by name."""

    columns: dict[str, str]

    def statement(self) -> str:
        return f"The table has these {len(self.columns)} columns, of these types, and no others."

    def look(self, place: Dataset) -> Found:
        there = {column.name: column.type for column in place.shape(self.table).columns}
        differing = [
            {
                "column": name,
                "expected": self.columns.get(name, "none"),
                "there": there.get(name, "none"),
            }
            for name in dict.fromkeys([*self.columns, *there])
            if not _alike(self.columns.get(name), there.get(name))
        ]
        return Found(
            not differing,
            f"{len(differing)} differ" if differing else "as expected",
            differing[:MAX_EXAMPLES],
        )


def _alike(one: str | None, other: str | None) -> bool:
    """Return whether types are alike: MariaDB's JSON is a LONGTEXT."""
    return one == other or {one, other} == {"json", "longtext"}


class ExpectNewestToBeRecent(OwnExpectation):
    """Expect a column's newest time (UTC) at most `hours` before the checked moment."""

    column: str
    hours: float

    def statement(self) -> str:
        return f"The newest {self.column} is at most {self.hours:g} hours old."

    def look(self, place: Dataset) -> Found:
        ((newest,),) = place.ask(
            f"SELECT MAX({quoted(self.column)}) FROM {place.table(self.table)}"
        )
        if newest is None:
            return Found.otherwise("there is no value")
        age_h = (place.at_ms - _unix_ms(newest)) / _MS_PER_H
        return Found(age_h <= self.hours, f"{as_text(newest)}, {age_h:.1f} hours old")


def _unix_ms(value: object) -> float:
    if not isinstance(value, date | datetime):
        value = datetime.fromisoformat(str(value))
    moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000


class ExpectSumToBeConstant(OwnExpectation):
    """Expect the sums of these columns to be what they were before.

    Before is `hours` before the moment that is checked, or `since` (a TSO, or a time in UTC). The
    old sums come from the archive.
    """

    columns: list[str]
    hours: float = 24
    since: str | int = ""

    def statement(self) -> str:
        then = self.since or f"{self.hours:g} hours before"
        return f"The sum of {', '.join(self.columns)} is what it was {then}."

    def look(self, place: Dataset) -> Found:
        if not place.ts:
            raise QualityError(
                f"the {place.on} has no moment: a sum is compared on the downstream and in the lake"
            )
        earlier = (
            moments.parse_moment(str(self.since))
            if self.since
            else place.ts - tso.span(int(self.hours * _MS_PER_H))
        )
        changes = sum_changes(pipeline(), self.table, self.columns, (earlier, place.ts))
        changed = [one for one in changes if one.change]
        if not changed:
            return Found.as_expected(
                f"the same, through {changes[0].rows:,} rows that are different"
            )
        said = ", ".join(f"{one.column} by {one.change:+f}" for one in changed)
        return Found.otherwise(
            f"changed since {tso.text(earlier)}: {said}, in {changed[0].rows:,} rows"
        )


class ExpectTableToEqualTheUpstream(OwnExpectation):
    """Every row is what it is upstream at the checkpoint, as `sluice verify` compares it.

    `how`: with TiDB (``upstream``), with snapshot and archive (``archive``), or ``auto``.
    """

    how: str = "auto"

    def statement(self) -> str:
        return "Every row is what it is upstream, at the checkpoint."

    def look(self, place: Dataset) -> Found:
        if place.on != "downstream":
            raise QualityError(
                f'the {place.on} isn\'t compared with the upstream: write on = ["downstream"]'
            )
        equal, said, rows = compared_with_upstream(pipeline(), self.table, self.how)
        return Found(equal, said, rows[:MAX_EXAMPLES])


OWN: dict[str, type[OwnExpectation]] = {
    "expect_key_to_be_unique": ExpectKeyToBeUnique,
    "expect_references_to_have_parents": ExpectReferencesToHaveParents,
    "expect_columns_and_types": ExpectColumnsAndTypes,
    "expect_newest_to_be_recent": ExpectNewestToBeRecent,
    "expect_sum_to_be_constant": ExpectSumToBeConstant,
    "expect_table_to_equal_the_upstream": ExpectTableToEqualTheUpstream,
}
"""The expectations, by their names in suites."""
