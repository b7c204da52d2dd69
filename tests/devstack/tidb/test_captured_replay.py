import asyncio

import pytest

from sluice.devstack.collations import recorded_new_collations
from sluice.devstack.recording import Recording
from sluice.devstack.tidb.sql import Versions
from sluice.devstack.tidb.sql.errors import SQLError
from tests.devstack.cluster_harness import RECORDINGS
from tests.devstack.tidb.captured_replay import captured, record_again

SLOW = ["shop", "conversions", "bootstrap"]
EVERY = [
    "types",
    "ddl",
    "oldcoll",
    "orphans",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("edges", *SLOW)),
]


def disturb(cluster, number):
    """Split, merge, move and break, over and over."""
    changes = cluster.changes
    regions = changes.regions.between(b"t", b"u")
    region = regions[number * 7 % len(regions)]
    if number % 4 == 0:
        keys = list(cluster.store.scan(b"t", b"u"))
        if keys:
            changes.split(keys[number * 31 % len(keys)])
    elif number % 4 == 1:
        changes.transfer(region.id, 1 + number % 2)
    elif number % 4 == 2:
        changes.merge(region.id)
    elif number % 12 == 3:
        changes.break_streams(1 + number % 2)
    changes.repeated_commands = number % 8


def compare(recording, again):
    """Compare all tables at every snapshot."""
    differences, compared = [], 0
    given, made = (
        Versions(each, lambda: recorded_new_collations(Recording(recording)))
        for each in (Recording(recording), Recording(again))
    )
    for label in Recording(recording).labels:
        for full in label.tables:
            table = given.catalog(label.ts).find(*full.split(".", 1))
            if table is None:
                continue
            try:
                wanted = [list(map(repr, row)) for row in given.rows(table, label.ts)]
            except SQLError:  # what binlogs don't tell
                continue
            found = [list(map(repr, row)) for row in made.rows(table, label.ts)]
            compared += len(wanted)
            if wanted != found:
                differences.append((label.name, full, wanted[:3], found[:3]))
    return differences, compared


@pytest.mark.ci_cases("types", "ddl", "edges", "bootstrap")
@pytest.mark.quick_cases("types")
@pytest.mark.parametrize("name", EVERY)
def test_a_recording_that_is_played_as_change_data_gives_the_same_rows(name, tmp_path):
    definitions, transactions, errors = asyncio.run(captured(RECORDINGS / name, disturb))
    record_again(RECORDINGS / name, tmp_path / "again", definitions, transactions)
    differences, compared = compare(RECORDINGS / name, tmp_path / "again")
    assert differences == []
    assert compared
    assert errors
