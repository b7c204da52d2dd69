"""Tables with every version of their rows, damaged and copied again: the open versions are the
upstream's rows, those that had ended stay, and verification and its repair agree.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sluice.etl.copy.backfill.throttle import AdaptiveChunkSize
from sluice.relay.aligned_chunks import COMPARE, MISSING, REPLACE
from tests.etl.apply.ruled_columns import apply, settings_of
from tests.etl.apply.soft_deleted import Drawn, made_of
from tests.etl.apply.versions import RULE, Versions, open_rows, run
from tests.etl.copy.backfill.test_random_by_column_rules import backfill, served_rows
from tests.etl.copy.backfill.test_soft_deleted_rows import differing, repair
from tests.etl.copy.given_rows import serving
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story
from tests.examples import examples

DAMAGE = {
    "go": "DELETE FROM d.t WHERE until IS NULL LIMIT 1",
    "change": "UPDATE d.t SET v = 'damaged' WHERE until IS NULL LIMIT 2",
    "come": "INSERT IGNORE INTO d.t (k, since, made_by) VALUES ({extra}, '1971-01-01', 5)",
    "end": "UPDATE d.t SET until = '2001-01-01' WHERE until IS NULL LIMIT 1",
}


def damage(server: MariaDBServer, kind: str, data: st.DataObject) -> None:
    extra = "99" if kind == "number" else "'extra'"
    for what in data.draw(st.lists(st.sampled_from([*DAMAGE]), min_size=1)):
        run(server, DAMAGE[what].format(extra=extra))


def check_open(upstream: Drawn) -> None:
    assert open_rows(upstream.story) == sorted(
        (tuple(row[c.name] for c in upstream.table.columns) for row in upstream.rows.values()),
        key=repr,
    )


def past(story: Story) -> Counter[Any]:
    return Counter(row for row in story.rows("t") if row[-2] is not None)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["number", "any case"])
def test_a_damaged_table_has_the_upstreams_rows_open_and_keeps_past_versions(
    mariadb: MariaDBServer,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.setattr(AdaptiveChunkSize.__init__, "__defaults__", (2,))

    @tried(
        deadline=None,
        max_examples=examples(8),
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        mariadb.empty()
        folder = tmp_path_factory.mktemp("story")
        story = Story(mariadb, folder)
        made = made_of(kind, clustered=True)
        story.create(made, "CREATE TABLE t (...)")
        settings = settings_of(story, RULE)
        upstream = Drawn(story, kind, made, data)
        versions = Versions(upstream)
        for _ in range(data.draw(st.integers(1, 4))):
            versions.transaction()
        apply(story, settings)
        assert story.rows("t") == versions.wanted()
        with serving(made, served_rows(upstream), region_rows=2) as address:
            assert not differing(upstream, settings, mariadb, address, folder)
            before = past(story)
            damage(mariadb, kind, data)
            if data.draw(st.booleans()):
                repair(upstream, settings, mariadb, address, folder)
            else:
                if data.draw(st.booleans()):
                    backfill(upstream, settings, address, MISSING)
                compared = backfill(upstream, settings, address, COMPARE)
                found = backfill(upstream, settings, address, REPLACE)
                for count in ("inserted", "replaced", "deleted"):
                    assert found[count] == compared[count]
            check_open(upstream)
            assert not before - past(story)
            assert not differing(upstream, settings, mariadb, address, folder)
        versions.transaction()
        apply(story, settings)
        check_open(upstream)

    check()


def test_the_summary_of_a_chunk_counts_versions_that_end_and_those_that_begin(
    mariadb: MariaDBServer, tmp_path: Any
) -> None:
    story = Story(mariadb, tmp_path)
    made = made_of("number", clustered=True)
    story.create(made, "CREATE TABLE t (...)")
    settings = settings_of(story, RULE)
    upstream: Any = Drawn(story, "number", made, None)  # type: ignore[arg-type]
    story.changes(*(upstream.came({"k": n, "u": None, "v": "x"}) for n in (1, 2, 3)))
    apply(story, settings)
    first = story.now
    run(
        mariadb,
        "INSERT INTO d.t (k, since, made_by) VALUES (7, '1971-01-01', 5)",
        "UPDATE d.t SET v = 'y' WHERE k = 1",
        "DELETE FROM d.t WHERE k = 2",
    )
    with serving(made, served_rows(upstream), region_rows=2) as address:
        found = backfill(upstream, settings, address, REPLACE)
    assert (found["inserted"], found["replaced"], found["deleted"]) == (1, 1, 1)
    rows = story.rows("t", "k, v, until IS NULL, made_by > " + str(first))
    assert rows == [(1, "x", 1, 1), (1, "y", 0, 0), (2, "x", 1, 1), (3, "x", 1, 0), (7, None, 0, 0)]
    ((odd,),) = run(mariadb, "SELECT COUNT(*) FROM d.t WHERE since > until")
    assert odd == 0


def test_two_open_versions_of_a_row_are_found_and_not_copied_over(
    mariadb: MariaDBServer, tmp_path: Any
) -> None:
    story = Story(mariadb, tmp_path)
    made = made_of("number", clustered=True)
    story.create(made, "CREATE TABLE t (...)")
    settings = settings_of(story, RULE)
    upstream: Any = Drawn(story, "number", made, None)  # type: ignore[arg-type]
    story.changes(*(upstream.came({"k": n, "u": None, "v": "x"}) for n in (1, 2)))
    apply(story, settings)
    run(mariadb, "INSERT INTO d.t SELECT k, u, v, since, until, 5 FROM d.t WHERE k = 1")
    with serving(made, served_rows(upstream), region_rows=2) as address:
        apart = differing(upstream, settings, mariadb, address, tmp_path)
        assert apart is not None and apart.count == 1
