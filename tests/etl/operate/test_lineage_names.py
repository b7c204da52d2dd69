"""Lineage names what changed upstream and downstream, and asks no server for it."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.operate import lineage
from sluice.etl.operate.lineage import (
    ColumnSource,
    Dataset,
    Lineage,
    lineage_of_job,
    lineage_since,
    upstream_namespace,
)
from sluice.etl.settings import Settings, Upstream, parse_settings
from sluice.relay.jobs import DONE, JobCounts, Jobs, Runner, WriteScope
from sluice.relay.measures import CounterStore, TableCount, source_of
from tests.etl.masking import KEY, VARIABLE
from tests.etl.story import Story, table

NOW = 1_790_000_000_000
PEOPLE = table(11, "people", "id int", "name varchar(64)", "mail varchar(40)", primary="id")
NOTES = table(12, "notes", "id int", "text varchar(9)", primary="id")
RULES = f"""
[filter.mask]
key-env = "{VARIABLE}"
relay-log = "clear"
[[filter.columns]]
tables = ["d.people"]
leave-out = ["mail"]
rename = {{ name = "who" }}
mask = {{ name = "hash" }}
add = {{ twice = "id * 2" }}
[[route]]
schema-pattern = "d"
target-schema = "shop"
"""
TIDB, REPLICA = "tidb://tidb.example:4000", "mysql://db.example:3307"


def settings_of(story: Story, downstream: str, more: str = "") -> Settings:
    text = (
        '[upstream]\npd-urls = "http://pd1:2379,pd2:2379"\nsql-host = "tidb.example"\n'
        f'[relay]\nurl = "{story.url}"\n[downstream]\n{downstream}\n{more}'
    )
    return parse_settings(tomllib.loads(text))


DATABASE = 'host = "db.example"\nport = 3307'


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    monkeypatch.setenv(VARIABLE, KEY)
    server: Any = None  # nothing is applied
    found = Story(server, tmp_path)
    found.create(PEOPLE, "CREATE TABLE `people` (...)")
    found.create(NOTES, "CREATE TABLE `notes` (...)")
    found.insert(PEOPLE, {"id": 1, "name": "ann", "mail": "a@b"})
    found.insert(NOTES, {"id": 1, "text": "x"})
    return found


def count(settings: Settings, at_ms: int, *names: str, number: int = 1) -> None:
    changed = {name: TableCount(inserts=1, last_ms=at_ms) for name in names}
    source = source_of(settings.downstream_name)
    CounterStore(settings.open_relay()).add_tables(source, changed, f"t{at_ms}", number)


def test_columns_are_as_replicated_and_lead_to_those_upstream(story: Story) -> None:
    settings = settings_of(story, DATABASE, RULES)
    count(settings, NOW, "d.people")
    found = lineage_since(settings, NOW)
    columns = {"id": "INT", "name": "VARCHAR(64)", "mail": "VARCHAR(40)"}
    assert found.inputs == [Dataset(TIDB, "d.people", columns)]
    (output,) = found.outputs
    assert (output.namespace, output.name) == (REPLICA, "shop.people")
    assert list(output.columns) == ["id", "who", "twice"]
    assert output.columns["who"] == "VARCHAR(64)" and output.columns["twice"].startswith("BIGINT")
    assert output.sources == {
        "id": [ColumnSource(TIDB, "d.people", "id")],
        "who": [ColumnSource(TIDB, "d.people", "name", "mask hash", is_masked=True)],
        "twice": [ColumnSource(TIDB, "d.people", "id", "id * 2")],
    }


def test_only_tables_that_changed_since_then_are_named_the_last_ones_first_at_the_limit(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(story, DATABASE)
    count(settings, NOW - 1, "d.before")
    count(settings, NOW, "d.people", "(others)")
    count(settings, NOW + 1, "d.notes", "d.unknown")
    found = lineage_since(settings, NOW)
    assert [one.name for one in found.inputs] == ["d.notes", "d.people", "d.unknown"]
    assert [bool(one.columns) for one in found.outputs] == [True, True, False]
    monkeypatch.setattr(lineage, "MAX_TABLES", 2)
    found = lineage_since(settings, NOW)
    assert [one.name for one in found.inputs] == ["d.notes", "d.unknown"] and found.left_out == 2


def test_a_filtered_table_is_not_named(story: Story) -> None:
    settings = settings_of(
        story, DATABASE, '[filter]\nignore-table = [{ db-name = "d", tbl-name = "people" }]\n'
    )
    count(settings, NOW, "d.people", "d.notes")
    assert [one.name for one in lineage_since(settings, 0).inputs] == ["d.notes"]


def test_files_are_one_folder_and_topics_those_of_the_tables(story: Story) -> None:
    files = settings_of(story, 'type = "file"', '[file]\ndir = "/var/binlog"\n')
    count(files, NOW, "d.people", "d.notes")
    assert lineage_since(files, NOW).outputs == [Dataset("file", "/var/binlog")]
    more = '[kafka]\nbrokers = "k1:9093,k2:9093"\nsavepoint = "/var/savepoint"\n'
    kafka = settings_of(story, 'type = "kafka"', more)
    count(kafka, NOW, "d.people", "d.notes")
    (topic,) = lineage_since(kafka, NOW).outputs
    assert (topic.namespace, topic.name) == ("kafka://k1:9093", "7_obinlog")
    assert [one.name for one in topic.sources["id"]] == ["d.notes", "d.people"]
    more += 'format = "canal-json"\ntopic = "cdc.{schema}.{table}"\n'
    kafka = settings_of(story, 'type = "kafka"', more)
    count(kafka, NOW, "d.people", number=2)
    names = [one.name for one in lineage_since(kafka, NOW).outputs]
    assert "cdc.d.people" in names


def test_without_an_address_of_tidb_pd_gives_the_namespace(story: Story) -> None:
    settings = settings_of(story, DATABASE)
    assert upstream_namespace(settings) == TIDB
    for urls, expected in (("https://pd1:2380,pd2", "pd1:2380"), ("pd", "pd:2379")):
        with_pd = replace(settings, upstream=Upstream(urls))
        assert upstream_namespace(with_pd) == f"tidb://{expected}"
    assert upstream_namespace(replace(settings, upstream=Upstream("[fd00::1]:2379"))) == (
        "tidb://[fd00::1]:2379"
    )


def test_a_job_s_tables_are_those_that_it_copied_and_none_if_it_only_compared(
    story: Story,
) -> None:
    settings = settings_of(story, DATABASE)
    jobs = Jobs.for_pipeline(settings.open_relay())

    def after(kind: str, **asked: Any) -> Lineage:
        job = jobs.create(kind, asked, WriteScope("x", ()), "ann")
        with job.run(Runner("a test")) as run:
            run.did("d.people", JobCounts(rows=1))
            run.end(DONE)
        return lineage_of_job(settings, job.id)

    found = after("backfill", mode="replace")
    assert [one.name for one in (*found.inputs, *found.outputs)] == ["d.people", "d.people"]
    assert found.inputs[0].columns
    for one in (after("backfill", mode="compare"), after("snapshot")):
        assert one == Lineage([], [])
