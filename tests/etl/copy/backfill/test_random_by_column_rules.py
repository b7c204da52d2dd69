"""Tables whose columns a rule leaves out, or adds, damaged downstream and copied again between DDL:
they are what a real server selects of whole rows, and verification finds nothing.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sluice.etl.changes.formats.sql_text import literal, quote_name
from sluice.etl.changes.rules import Filter, ReplicationRules
from sluice.etl.copy.backfill import BackfillDownstream, BackfillRequest
from sluice.etl.copy.backfill.backfill_job import BackfillEndpoints, BackfillJob
from sluice.etl.copy.backfill.plan import make_backfill_plan
from sluice.etl.copy.backfill.reader import ReadRequest, ReadResult, read_chunk
from sluice.etl.copy.backfill.throttle import AdaptiveChunkSize
from sluice.etl.copy.backfill.upstream_catalog import UpstreamCatalog
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.errors import BackfillError
from sluice.etl.copy.tidb_session import TidbAddress, TidbSession
from sluice.etl.downstream.chunk_results import ChunkResult
from sluice.etl.settings import Relay, Settings, Upstream
from sluice.relay.aligned_chunks import COMPARE, REPLACE
from sluice.relay.jobs import DONE, Jobs, Runner, WriteScope
from sluice.tidb import tso
from sluice.tidb.schema import Schema
from tests.etl.apply.drawn_table import VALUES, DrawnTable, spec_kind
from tests.etl.apply.ruled_columns import (
    apply,
    drawn_rule,
    names,
    selected,
    settings_of,
    sql_type,
)
from tests.etl.copy.given_rows import serving
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, table
from tests.etl.verify.replicas import Replica
from tests.examples import examples

SCHEMA = Schema(1, "d", "utf8mb4", "utf8mb4_bin")


class DrawnUpstream(UpstreamCatalog):
    """The drawn table as it is now, in a cluster whose clock goes on whenever it is looked at."""

    def __init__(self, address: TidbAddress, drawn: DrawnTable) -> None:
        nobody: Any = None
        upstream = Upstream("unused", sql_host=address.host, sql_port=address.port)
        super().__init__(
            Settings(upstream, Relay("unused"), drawn.story.server.downstream), nobody, nobody
        )
        self._drawn = drawn
        self._clock = itertools.count(drawn.story.now + 10, tso.span(200))

    def now(self) -> int:
        return next(self._clock)

    def definitions(self, ts: int) -> SourceSchema:
        return SourceSchema(ts, 5, (SCHEMA,), (self._drawn.table,))


class AppliedDownstream(BackfillDownstream):
    """Lands and applies through a chunk before its result is looked for."""

    def __init__(self, settings: Settings, story: Story) -> None:
        super().__init__(settings, story.cluster_id)
        self._story, self._applied = story, settings

    def result_of(self, job: str, at_ts: int) -> ChunkResult | None:
        if self._story.now <= at_ts:
            self._story.idle(at_ts + 1)
            apply(self._story, self._applied)
        return super().result_of(job, at_ts)


def served_rows(drawn: DrawnTable) -> list[list[Any]]:
    """The rows as the stand-in TiDB keeps them."""
    return [
        [
            value.encode()
            if column.kind == "text" and (value := row[column.name]) is not None
            else row[column.name]
            for column in drawn.table.stored_columns
        ]
        + ([row["_tidb_rowid"]] if drawn.table.handle_kind == "heap" else [])
        for row in drawn.rows.values()
    ]


def backfill(
    drawn: DrawnTable,
    settings: Settings,
    address: TidbAddress,
    how: str,
    of_job: Filter | None = None,
) -> dict[str, Any]:
    """Copy the table again as `sluice backfill` does; what became of it.

    `of_job`: its rules, if they aren't those of applying.
    """
    filters = settings.filters if of_job is None else of_job
    relay, request = settings.open_relay(), BackfillRequest(("d.t",), mode=how)
    upstream, downstream = DrawnUpstream(address, drawn), AppliedDownstream(settings, drawn.story)

    def read(order: ReadRequest) -> ReadResult:
        with TidbSession(address) as session:
            return read_chunk(session, relay.storage, order)

    try:
        rules = filters, settings.routes
        definitions = upstream.definitions(drawn.story.now)
        plan = make_backfill_plan(request, definitions, rules, upstream, downstream.columns())
        assert not plan.problems
        job = Jobs.for_pipeline(relay).create(
            "backfill", request.to_json(), WriteScope("db", ("d.t",)), "test"
        )
        sides = BackfillEndpoints(
            upstream,
            downstream,
            relay.aligned_chunks,
            relay.storage,
            read,
            ReplicationRules(*rules),
        )
        with job.run(Runner("test")) as run:
            work = BackfillJob(request, plan, sides, job.id, run)
            work.work()
            run.end(DONE)
    finally:
        upstream.close()
        downstream.close()
    found: dict[str, Any] = work.result["tables"]["d.t"]
    return found


def damage(
    server: MariaDBServer, drawn: DrawnTable, kept: dict[str, str], data: st.DataObject
) -> None:
    """Rows go, change, and come that the upstream never had."""
    others = [c for c in drawn.table.columns if c.name in kept and c.name != "id"]
    extra = "'extra'" if drawn.kind == "text key" else "99"
    with server.connect() as connection, connection.cursor() as cursor:
        for what in data.draw(st.lists(st.sampled_from(["go", "change", "come"]), min_size=1)):
            if what == "go":
                cursor.execute("DELETE FROM d.t LIMIT 1")
            elif what == "come":
                cursor.execute(f"INSERT IGNORE INTO d.t (id) VALUES ({extra})")
            elif others:
                one = data.draw(st.sampled_from(others))
                value = literal(data.draw(st.sampled_from(VALUES[spec_kind(one)])))
                cursor.execute(f"UPDATE d.t SET {quote_name(kept[one.name])} = {value} LIMIT 2")


def differing(
    drawn: DrawnTable, settings: Settings, server: MariaDBServer, address: TidbAddress, folder: Path
) -> int:
    """How many rows verification finds to differ."""
    known = SourceSchema(drawn.story.now, 5, (SCHEMA,), (drawn.table,))
    replica = Replica(address, known, server, folder, settings.filters)
    apart = replica.compare()["d.t"].found.apart
    return 0 if apart is None else apart.count


@pytest.mark.parametrize("is_of_job", [False, True])
def test_rows_of_a_job_with_other_rules_than_those_of_applying_are_declined(
    mariadb: MariaDBServer, tmp_path: Path, is_of_job: bool
) -> None:
    story = Story(mariadb, tmp_path)
    made = story.create(table(11, "t", "id int", "a int", primary="id"), "CREATE TABLE t (...)")
    story.insert(made, {"id": 1, "a": 2})
    drawn: Any = SimpleNamespace(story=story, table=made, rows={1: {"id": 1, "a": 2}})
    rule = {"leave-out": ["a"]}
    whole, narrow = settings_of(story), settings_of(story, rule)
    settings, of_job = (whole, narrow) if is_of_job else (narrow, whole)
    apply(story, settings)
    before = story.rows("t")
    with serving(made, served_rows(drawn), region_rows=2) as address:
        with mariadb.connect() as connection, connection.cursor() as cursor:
            if not is_of_job:  # a column that was there before the rule
                cursor.execute("ALTER TABLE d.t ADD COLUMN a int")
                before = [(1, None)]
        with pytest.raises(BackfillError, match=r"d\.t: the rules .* other columns .* \(a\)"):
            backfill(drawn, settings, address, REPLACE, of_job.filters)
    assert story.rows("t") == before


@pytest.mark.ci_cases(every=3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "clustered",
        "keyless",
        "text key",
        "heap",
    ],
)
@pytest.mark.parametrize("renames", [False, True])
def test_a_damaged_table_is_again_what_the_rule_leaves_of_it(
    mariadb: MariaDBServer,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    renames: bool,
) -> None:
    monkeypatch.setattr(AdaptiveChunkSize.__init__, "__defaults__", (2,))

    @tried(
        deadline=None,
        max_examples=examples(5),
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        mariadb.empty()
        folder = tmp_path_factory.mktemp("story")
        story = Story(mariadb, folder)
        rule = drawn_rule(data, renames=renames)
        drawn = DrawnTable(story, kind, data, renames=rule.takes_any_name)
        added = {"an id": "concat(id, '!')"} if renames else {}
        settings = settings_of(story, rule.raw | ({"add": added} if added else {}))
        for _ in range(2):
            for _ in range(data.draw(st.integers(1, 4))):
                drawn.step()
            apply(story, settings)
            kept = rule.columns(drawn.table)
            damage(mariadb, drawn, kept, data)
            with serving(drawn.table, served_rows(drawn), region_rows=2) as address:
                compared = backfill(drawn, settings, address, COMPARE)
                found = backfill(drawn, settings, address, REPLACE)
                assert found["rows"] == len(drawn.rows)
                for count in ("inserted", "replaced", "deleted"):
                    assert found[count] == compared[count]
                assert names(mariadb) == [*kept.values(), *added]
                assert story.rows("t") == selected(mariadb, drawn, [*kept, *added.values()])
                assert differing(drawn, settings, mariadb, address, folder) == 0
        drawn.transaction()
        apply(story, settings)
        assert story.rows("t") == selected(mariadb, drawn, [*kept, *added.values()])
        if not renames:
            filled_without_the_rule(mariadb, drawn, [*kept])

    check()


def filled_without_the_rule(server: MariaDBServer, drawn: DrawnTable, kept: list[str]) -> None:
    """A rule is removed, and what it left out is there again after a copy."""
    left = [c for c in drawn.table.columns if c.name not in kept]
    with server.connect() as connection, connection.cursor() as cursor:
        for one in left:
            cursor.execute(f"ALTER TABLE d.t ADD COLUMN {one.name} {sql_type(one)}")
    with serving(drawn.table, served_rows(drawn), region_rows=2) as address:
        backfill(drawn, settings_of(drawn.story), address, REPLACE)
    every = [*kept, *(one.name for one in left)]
    drawn.transaction()
    apply(drawn.story, settings_of(drawn.story))
    assert drawn.story.rows("t", ", ".join(every)) == selected(server, drawn, every)
