"""Shifted dates downstream: of changes, and of a DDL behind which the days would be others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import SluiceError
from sluice.tidb.ddl_actions import Action
from sluice.tidb.schema import Table
from tests.etl.apply.ruled_columns import apply, settings_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.masking import KEY, SECTION, VARIABLE, shifted
from tests.etl.story import Story, column, table

VISITS = table(
    11, "t", "id int", "person int", "other int", "day date", "at datetime(3)", primary="id"
)
MASKS = {name: {"shift-days": 200, "by": "person"} for name in ("day", "at")}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)


def begun(mariadb: MariaDBServer, folder: Path) -> tuple[Story, Any]:
    story = Story(mariadb, folder)
    story.create(VISITS, "CREATE TABLE t (...)")
    return story, settings_of(story, {"mask": MASKS}, filter={"mask": SECTION})


def test_updates_and_deletes_find_shifted_rows_and_a_new_person_has_other_days(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story, settings = begun(mariadb, tmp_path)
    visits = [
        {"id": n, "person": n % 3, "other": 0, "day": "2000-03-01", "at": "2000-03-02 10:00:00.500"}
        for n in range(9)
    ]
    story.insert(VISITS, *visits)
    apply(story, settings)
    visits[1] = story.update(VISITS, visits[1], {"person": 7})
    visits[2] = story.update(VISITS, visits[2], {"day": "2000-03-03"})
    story.delete(VISITS, visits.pop(5))
    apply(story, settings)
    found = [(row[0], str(row[3]), str(row[4])) for row in sorted(story.rows("t"))]
    assert found == [
        (
            visit["id"],
            shifted(visit["day"], 200, str(visit["person"])),
            shifted("2000-03-02", 200, str(visit["person"])) + " 10:00:00.500000",
        )
        for visit in visits
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({2: "who int"}, "the table has no column person"),
        ({2: "other int", 3: "person int"}, "person was another column"),
        ({2: "person varchar(9)"}, "the type of person was int"),
        ({4: "day datetime"}, "its type was date"),
    ],
)
def test_a_ddl_behind_which_days_would_be_others_stops_before_it_runs(
    mariadb: MariaDBServer, tmp_path: Path, columns: dict[int, str], why: str
) -> None:
    story, settings = begun(mariadb, tmp_path)
    apply(story, settings)
    after: Table = replace(
        VISITS,
        columns=tuple(
            replace(column(c.id, columns[c.id]), offset=c.offset) if c.id in columns else c
            for c in VISITS.columns
        ),
    )
    story.statement(Action.MODIFY_COLUMN, "ALTER TABLE t ...", after)
    with pytest.raises(SluiceError, match=rf"\[\[filter.columns\]\].*{why}"):
        apply(story, settings)
