"""What a person did by hand stands out among what an application does all the time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pytest

from sluice.etl.history.find import Activity, Incident, find_incidents
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.schema import Table
from tests.etl.story import table

MINUTE = 60_000 << 18
BEGIN = 27_000_000 * MINUTE
TABLES = {name: table(n, name, "id int", primary="id") for n, name in enumerate("abc", 11)}
KINDS = {DELETE: "delete", INSERT: "insert", UPDATE: "update"}


@dataclass(frozen=True, order=True)
class Transaction:
    at: int
    rows: tuple[tuple[str, int, int], ...]
    """Table, kind and how many."""


def at(minute: float) -> int:
    return BEGIN + int(minute * MINUTE)


def counted(transactions: list[Transaction], minutes: int = 180) -> Activity:
    """Count them in windows of a minute, the newest first."""
    activity = Activity(at(minutes), at(0), complete=True)
    newest_first = sorted(transactions, reverse=True)
    for _, some in groupby(newest_first, key=lambda one: one.at // MINUTE):
        activity.add(changes(list(some)))
    return activity


def changes(transactions: list[Transaction]) -> list[tuple[Table, pa.Table]]:
    found = []
    for name, each in TABLES.items():
        rows = [
            (one.at, one.at - 9, kind)
            for one in transactions
            for table, kind, count in one.rows
            for _ in range(count)
            if table == name
        ]
        if rows:
            ts, start, kinds = zip(*rows, strict=True)
            columns = {"commit_ts": ts, "start_ts": start, "kind": kinds}
            found.append((each, pa.table(columns)))
    return found


def application(rng: random.Random, minutes: int = 180) -> list[Transaction]:
    """An application that deletes, updates and inserts one to three rows, many times a minute."""
    return [
        Transaction(
            at(minute) + rng.randrange(MINUTE),
            tuple(
                (name, rng.choice((DELETE, INSERT, UPDATE)), rng.choice((1, 1, 1, 2, 3)))
                for name in rng.sample("abc", rng.choice((1, 1, 2)))
            ),
        )
        for minute in range(minutes)
        for _ in range(rng.randrange(2, 9))
    ]


def batches(minute: float, name: str, kind: int, *sizes: int) -> list[Transaction]:
    step = MINUTE // 20
    return [
        Transaction(at(minute) + n * step, ((name, kind, size),)) for n, size in enumerate(sizes)
    ]


def chosen(incident: Incident, transactions: list[Transaction]) -> list[Transaction]:
    """What `sluice undo` would take with the incident's range, tables, kind and least rows."""
    names = {burst.table.partition(".")[2] for burst in incident.bursts}
    found = []
    for one in transactions:
        sums: Counter[str] = Counter()
        for name, kind, count in one.rows:
            if name in names and KINDS[kind] == incident.kind:
                sums[incident.kind] += count
        if incident.first_ts <= one.at <= incident.last_ts and sums.total() >= max(
            1, incident.min_rows
        ):
            found.append(one)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_batches_of_three_tables_are_told_from_an_applications_deletes_exactly(seed: int) -> None:
    rng = random.Random(seed)
    begin = rng.uniform(20, 150)
    usual = application(rng)
    damage = [
        *batches(begin, "a", DELETE, *[250] * 9, rng.randrange(8, 250)),
        *batches(begin + 0.6, "b", DELETE, *[250] * 5, rng.randrange(8, 250)),
        *batches(begin + 1, "c", DELETE, 250, rng.randrange(8, 250)),
    ]
    found = find_incidents(counted([*usual, *damage]))
    assert len(found) == 1
    assert {burst.table for burst in found[0].bursts} == {"d.a", "d.b", "d.c"}
    assert sorted(chosen(found[0], [*usual, *damage])) == sorted(damage)
    assert found[0].rows == sum(count for one in damage for _, _, count in one.rows)


def test_an_application_alone_has_nothing_that_stands_out() -> None:
    for seed in range(5):
        assert find_incidents(counted(application(random.Random(seed)))) == []


def test_what_comes_every_hour_is_usual_and_what_comes_twice_is_not() -> None:
    rng = random.Random(1)
    hourly = [one for hour in range(6) for one in batches(60 * hour + 7, "a", DELETE, 900, 900)]
    twice = [one for hour in (1, 4) for one in batches(60 * hour, "b", UPDATE, 500, 500)]
    found = find_incidents(counted([*application(rng, 360), *hourly, *twice], 360))
    assert [(one.kind, one.rows) for one in found] == [("update", 1000)] * 2


def test_a_loop_that_deletes_row_by_row_stands_out_as_mixed_with_the_applications() -> None:
    rng = random.Random(2)
    loop = [Transaction(at(90) + n * MINUTE // 400, (("a", DELETE, 1),)) for n in range(900)]
    (found,) = find_incidents(counted([*application(rng), *loop]))
    assert found.kind == "delete" and 900 <= found.rows < 1000
    assert found.bursts[0].is_mixed


def test_deletes_come_before_updates_and_those_before_inserts() -> None:
    made = [
        *batches(30, "a", INSERT, 9000),
        *batches(60, "b", UPDATE, 500),
        *batches(90, "c", DELETE, 40),
    ]
    found = find_incidents(counted([*application(random.Random(3)), *made]))
    assert [one.kind for one in found] == ["delete", "update", "insert"]


def test_what_was_taken_back_comes_behind_and_is_no_applications() -> None:
    first = [*batches(30, "a", DELETE, 900, 900, 77), *batches(30, "b", DELETE, 500)]
    undone = Transaction(at(40), (("a", INSERT, 1877), ("b", INSERT, 500)))
    again = batches(90, "a", DELETE, 900, 50)
    usual = application(random.Random(4))
    found = find_incidents(counted([*usual, *first, undone, *again]))
    assert [(one.kind, one.rows) for one in found] == [
        ("delete", 950),
        ("delete", 2377),
        ("insert", 2377),
    ]
    assert [one.back_ts for one in found] == [0, at(40), 0]
    assert not any(burst.is_mixed for one in found for burst in one.bursts)
    assert max(burst.others_most for one in found for burst in one.bursts) <= 3


def test_tables_whose_applications_deletes_are_as_large_are_not_taken_back_as_one() -> None:
    usual = [Transaction(at(minute) + 77, (("b", DELETE, 40),)) for minute in range(180)]
    damage = [*batches(60, "a", DELETE, 30, 30), *batches(60, "b", DELETE, 4000, 4000)]
    (found,) = find_incidents(counted([*usual, *damage]))
    assert found.min_rows == 0 and len(found.bursts) == 2
    assert [(each.least, each.rows) for each in found.bursts] == [(4000, 8000), (30, 60)]
    assert found.bursts[0].between and found.bursts[0].others_most == 40
