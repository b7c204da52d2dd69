"""One source of a merged table, damaged and copied again: its rows are right, others stay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sluice.etl.copy.backfill.throttle import AdaptiveChunkSize
from sluice.etl.settings.rules import parse_routes
from sluice.relay.aligned_chunks import COMPARE, MISSING, REPLACE
from sluice.tidb.schema import Table
from tests.etl.apply.ruled_columns import apply, settings_of
from tests.etl.apply.soft_deleted import Drawn, made_of
from tests.etl.apply.test_source_columns import ROUTE
from tests.etl.copy.backfill.test_random_by_column_rules import backfill, served_rows
from tests.etl.copy.given_rows import serving
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, table
from tests.examples import examples

DAMAGE = {
    "go": "DELETE FROM d.all LIMIT 1",
    "change": "UPDATE d.all SET v = 'damaged' LIMIT 2",
    "come": "INSERT IGNORE INTO d.all (k, origin) VALUES ({extra}, 'd.t')",
    "not mine": "UPDATE d.all SET v = 'mine' WHERE origin <> 'd.t' LIMIT 1",
}


def twin_of(made: Table) -> Table:
    return table(
        12, "t2", f"k {'int' if made.columns[0].kind == 'int' else 'varchar(9)'}", "u int",
        "v varchar(9)", primary="k", unique=("u",),
    )  # fmt: skip


def rows_of(story: Story, origin: str) -> list[Any]:
    return [row[:-1] for row in story.rows("all") if row[-1] == origin]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["number", "text"])
def test_a_damaged_source_has_the_upstreams_rows_and_others_stay_as_they_are(
    mariadb: MariaDBServer,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.setattr(AdaptiveChunkSize.__init__, "__defaults__", (2,))

    @tried(
        deadline=None,
        max_examples=examples(6),
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        mariadb.empty()
        story = Story(mariadb, tmp_path_factory.mktemp("story"))
        made = made_of(kind, clustered=True)
        for one in (made, twin_of(made)):
            story.create(one, f"CREATE TABLE {one.name} (...)")
        settings = settings_of(story, routes=parse_routes([ROUTE]))
        upstream: Any = Drawn(story, kind, made, data)
        keys = [1, 2, 3] if kind == "number" else ["a", "b"]
        story.insert(twin_of(made), *({"k": key, "u": n, "v": "t"} for n, key in enumerate(keys)))
        for _ in range(data.draw(st.integers(1, 4))):
            upstream.transaction()
        apply(story, settings)
        with mariadb.connect() as connection, connection.cursor() as cursor:
            for what in data.draw(st.lists(st.sampled_from([*DAMAGE]), min_size=1)):
                cursor.execute(DAMAGE[what].format(extra="99" if kind == "number" else "'zz'"))
            connection.commit()
        others = rows_of(story, "d.t2")
        with serving(made, served_rows(upstream), region_rows=2) as address:
            if data.draw(st.booleans()):
                backfill(upstream, settings, address, MISSING)
            compared = backfill(upstream, settings, address, COMPARE)
            found = backfill(upstream, settings, address, REPLACE)
        for count in ("inserted", "replaced", "deleted"):
            assert found[count] == compared[count]
        assert rows_of(story, "d.t") == sorted(
            (tuple(row[c.name] for c in made.columns) for row in upstream.rows.values()), key=repr
        )
        assert rows_of(story, "d.t2") == others

    check()
