"""Define expectations of the replication itself."""

from __future__ import annotations

from typing import Any

from sluice.expectations.gx.custom import Found, OwnExpectation
from sluice.expectations.gx.examples import MAX_EXAMPLES

__all__ = ["OF_REPLICATION"]


class ExpectWindowsWithoutGaps(OwnExpectation):
    """Each window begins where the one before it ends.

    The relay log of the last hours, and the whole archive.
    """

    hours: float = 1

    def statement(self) -> str:
        return (
            "Each window begins where the one before it ends, in the relay log and in the archive."
        )

    def look(self, place: Any) -> Found:
        broken, count = place.broken(self.hours)
        return (
            Found.otherwise(broken)
            if broken
            else Found.as_expected(f"{count:,} windows of {self.hours:g} hours")
        )


class ExpectLagBelow(OwnExpectation):
    """Expect the checkpoint at most `seconds` behind the clock."""

    seconds: float

    def statement(self) -> str:
        return f"The checkpoint is at most {self.seconds:g} seconds behind the clock."

    def look(self, place: Any) -> Found:
        lag = place.lag_s()
        if lag is None:
            return Found.otherwise("there is no checkpoint")
        return Found(lag <= self.seconds, f"{lag:.1f} seconds")


class ExpectUsualChanges(OwnExpectation):
    """Expect a table's changes in the last whole hour to be as many as usual.

    They are at most `factor` times the usual number (the median of the same hour of the `days`
    before), and not less than a `factor`-th; where there are at least `fewest`, now or usually.
    """

    factor: float = 10
    days: int = 7
    fewest: int = 1000

    def statement(self) -> str:
        return (
            f"Each table's changes in the last whole hour are between a {self.factor:g}th of and"
            f" {self.factor:g} times the median of the same hour of the {self.days} days before."
        )

    def look(self, place: Any) -> Found:
        hour, odd = place.last_hour, []
        for table in sorted(place.changes):
            count, usual = place.changes[table].get(hour, 0.0), place.usual(table, hour, self.days)
            if usual is None or max(count, usual) < self.fewest:
                continue
            if not usual / self.factor <= count <= usual * self.factor:
                odd.append({"table": table, "changes": f"{count:,.0f}", "usually": f"{usual:,.0f}"})
        if odd:
            return Found.otherwise(
                f"{len(odd)} tables with unusually few or many changes", odd[:MAX_EXAMPLES]
            )
        return Found.as_expected(f"{len(place.changes)} tables")


class ExpectChangesWhereThereAlwaysWere(OwnExpectation):
    """Expect changes in every table that always had some at this time of day.

    Fails for a table without a change in the last whole hours that had some in the same hours of
    each of the days before.
    """

    hours: int = 1
    days: int = 7

    def statement(self) -> str:
        return (
            f"No table is without a change in the last {self.hours} whole hours that had some then"
            f" on each of the {self.days} days before."
        )

    def look(self, place: Any) -> Found:
        last = place.last_hour
        silent = []
        for table, counts in sorted(place.changes.items()):
            if any(counts.get(hour, 0) for hour in range(last - self.hours + 1, last + 1)):
                continue
            spans = [
                range(last - self.hours + 1 - 24 * d, last + 1 - 24 * d)
                for d in range(1, self.days + 1)
            ]
            if all(any(counts.get(hour, 0) for hour in span) for span in spans):
                silent.append(
                    {
                        "table": table,
                        "usually": f"{place.usual(table, last, self.days) or 0:,.0f} an hour",
                    }
                )
        if silent:
            return Found.otherwise(f"{len(silent)} tables without changes", silent[:MAX_EXAMPLES])
        return Found.as_expected(f"{len(place.changes)} tables")


OF_REPLICATION: dict[str, type[OwnExpectation]] = {
    "expect_windows_without_gaps": ExpectWindowsWithoutGaps,
    "expect_lag_below": ExpectLagBelow,
    "expect_usual_changes": ExpectUsualChanges,
    "expect_changes_where_there_always_were": ExpectChangesWhereThereAlwaysWere,
}
"""The expectations, by their names in suites."""
