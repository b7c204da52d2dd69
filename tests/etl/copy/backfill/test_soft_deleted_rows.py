"""Tables whose deleted rows stay, damaged and copied again: living rows are the upstream's, others
are marked, and verification and its repair agree.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sluice.etl.copy.backfill.throttle import AdaptiveChunkSize
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.tidb_session import TidbAddress
from sluice.etl.downstream import MySQLSession
from sluice.etl.verify.repair import table_repair
from sluice.relay.aligned_chunks import COMPARE, MISSING, REPLACE
from tests.etl.apply.ruled_columns import apply, settings_of
from tests.etl.apply.soft_deleted import Drawn, made_of
from tests.etl.copy.backfill.test_random_by_column_rules import SCHEMA, backfill, served_rows
from tests.etl.copy.given_rows import serving
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story
from tests.etl.verify.replicas import Replica
from tests.examples import examples

RULE = {"soft-delete": "gone"}
DAMAGE = {
    "go": "DELETE FROM d.t WHERE gone IS NULL LIMIT 1",
    "change": "UPDATE d.t SET v = 'damaged' WHERE gone IS NULL LIMIT 2",
    "come": "INSERT IGNORE INTO d.t (k) VALUES ({extra})",
    "unmark": "UPDATE d.t SET gone = NULL LIMIT 2",
    "mark": "UPDATE d.t SET gone = '2001-01-01' WHERE gone IS NULL LIMIT 1",
}


def damage(server: MariaDBServer, kind: str, data: st.DataObject) -> None:
    extra = "99" if kind == "number" else "'extra'"
    with server.connect() as connection, connection.cursor() as cursor:
        for what in data.draw(st.lists(st.sampled_from([*DAMAGE]), min_size=1)):
            cursor.execute(DAMAGE[what].format(extra=extra))
        connection.commit()


def living(story: Story) -> list[Any]:
    return [row[:-1] for row in story.rows("t") if row[-1] is None]


def check_living(upstream: Drawn) -> None:
    assert living(upstream.story) == sorted(
        (tuple(row[c.name] for c in upstream.table.columns) for row in upstream.rows.values()),
        key=repr,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["number", "any case"])
def test_a_damaged_table_has_the_upstreams_rows_living_and_keeps_the_others(
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
        upstream: Any = Drawn(story, kind, made, data)
        for _ in range(data.draw(st.integers(1, 4))):
            upstream.transaction()
        apply(story, settings)
        assert story.rows("t") == upstream.wanted()
        with serving(made, served_rows(upstream), region_rows=2) as address:
            assert not differing(upstream, settings, mariadb, address, folder)
            damage(mariadb, kind, data)
            before = {row[0]: row for row in story.rows("t") if row[-1] is not None}
            if data.draw(st.booleans()):
                repair(upstream, settings, mariadb, address, folder)
            else:
                if data.draw(st.booleans()):
                    backfill(upstream, settings, address, MISSING)
                compared = backfill(upstream, settings, address, COMPARE)
                found = backfill(upstream, settings, address, REPLACE)
                for count in ("inserted", "replaced", "deleted"):
                    assert found[count] == compared[count]
            check_living(upstream)
            after = {row[0]: row for row in story.rows("t")}
            for key, row in before.items():
                kept = after.get(key)
                assert kept == row or upstream.same({"k": key}) in upstream.rows
            assert not differing(upstream, settings, mariadb, address, folder)
        upstream.transaction()
        apply(story, settings)
        check_living(upstream)

    check()


def differing(
    upstream: Drawn, settings: Any, server: MariaDBServer, address: TidbAddress, folder: Any
) -> Any:
    known = SourceSchema(upstream.story.now, 5, (SCHEMA,), (upstream.table,))
    replica = Replica(address, known, server, folder, settings.filters)
    compared = replica.compare()["d.t"].found
    assert compared.apart is not None or compared.rows == len(upstream.rows)
    return compared.apart


def repair(
    upstream: Drawn, settings: Any, server: MariaDBServer, address: TidbAddress, folder: Any
) -> None:
    """Run the SQL that `sluice verify --repair` prints."""
    apart = differing(upstream, settings, server, address, folder)
    if apart is None:
        return
    session = MySQLSession(server.downstream)
    session.connect()
    try:
        made = table_repair(session, apart, "d.t", upstream.story.now)
    finally:
        session.close()
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in made.clearing_statements():
            cursor.execute(statement)
        written = [(rows, cursor.execute(statement)) for rows, statement in made.statements()]
        assert sum(rows for rows, _ in written) == sum(done for _, done in written)
        connection.commit()


def test_the_summary_of_a_chunk_counts_a_row_that_is_marked_as_one_that_goes(
    mariadb: MariaDBServer, tmp_path: Any
) -> None:
    story = Story(mariadb, tmp_path)
    made = made_of("number", clustered=True)
    story.create(made, "CREATE TABLE t (...)")
    settings = settings_of(story, RULE)
    upstream: Any = Drawn(story, "number", made, None)  # type: ignore[arg-type]
    story.changes(*(upstream.came({"k": n, "u": None, "v": "x"}) for n in (1, 2)))
    apply(story, settings)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO d.t (k) VALUES (7)")
        cursor.execute("UPDATE d.t SET gone = '2001-01-01' WHERE k = 2")
        connection.commit()
    with serving(made, served_rows(upstream), region_rows=2) as address:
        found = backfill(upstream, settings, address, REPLACE)
    assert (found["inserted"], found["replaced"], found["deleted"]) == (1, 0, 1)
    assert [(row[0], row[-1] is None) for row in story.rows("t")] == [
        (1, True),
        (2, True),
        (7, False),
    ]
