"""Operators' commands against a real relay log and a real downstream: what they say, what they
leave, what is refused.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from sluice.cli.jobs import job_lines
from sluice.etl import load_settings
from sluice.etl.landing._control import LandingControl
from sluice.etl.landing._misplaced_rows import MisplacedRowError
from sluice.etl.landing._without_binlog import mark_unverified
from sluice.etl.operate import orders
from sluice.relay import INSERT, Control, RelayLog
from sluice.relay.jobs import DONE, FAILED, Jobs, Runner, TableProgress, WriteScope
from sluice.relay.jobs import JobCounts as Part
from sluice.relay.verification_log import UPSTREAM, TableVerified, Verifications, VerifiedRun
from sluice.tidb.codec.row import encode_insert
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlEffect, DdlJob
from tests.cli.typed import typed
from tests.etl.landing.test_definitions_used import row
from tests.etl.landing.test_misplaced_rows import ORDINARY, Checked
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, table

ITEM = table(11, "item", "id int", "name varchar(20)", primary="id")
NEW = table(11, "item", "id int", "name varchar(20)", "w int", primary="id")


Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    story = Story(mariadb, tmp_path)
    story.create(ITEM, "CREATE TABLE `item` (`id` int primary key, `name` varchar(20))")
    story.insert(ITEM, {"id": 1, "name": "a"})
    story.apply()
    return story


@pytest.fixture
def sluice(story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    config = tmp_path / "sluice.toml"
    config.write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "{story._url}"\n'
        f'[downstream]\nhost = "127.0.0.1"\nport = {story.server.port}\n'
    )
    monkeypatch.setenv("SLUICE_CONFIG", str(config))
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))

    return run


def run(*words: object, code: int = 0) -> CompletedProcess[str]:
    """What is said, and `code` is what it ends with."""
    done = typed(*words)
    assert done.returncode == code, done
    return done


def test_pausing_and_resuming_leave_the_other_half_as_it_was(story: Story, sluice: Run) -> None:
    relay = RelayLog.open(story._url)
    sluice("pause", "apply")
    assert relay.control() == Control(apply_paused=True)
    sluice("pause")
    sluice("resume", "apply")
    assert relay.control() == Control(land_paused=True)
    assert "paused      land" in sluice("status", code=3).stdout
    sluice("resume")
    assert relay.control() == Control()


@pytest.mark.slow
def test_status_names_tables_that_lack_rows_without_a_binlog_until_they_are_verified(
    story: Story, sluice: Run
) -> None:
    restored = replace(table(12, "my-t", "id int", primary="id"), schema_name="d")
    job = DdlJob(
        story._ts, job_id=7, query="/*from(br)*/CREATE TABLE `my-t` (`id` int)",
        type=Action.CREATE_TABLE, schema_name="d", effect=DdlEffect({}, {12: restored}),
    )  # fmt: skip
    relay = RelayLog.open(story._url)
    mark_unverified(relay, [job], lambda schema, name: True)
    said = sluice("status", code=3).stdout
    assert "unequal     d.my-t: DDL job 7 brought rows without a binlog" in said
    assert "`sluice backfill --table d.my-t`" in said
    now = time.time_ns() // 1_000_000 + 1
    whole = TableVerified("d.my-t", story._ts, now, 5, 60, 0, UPSTREAM, "verify")
    Verifications(relay).note(VerifiedRun("verify", story._ts, now, 1.0, UPSTREAM, (whole,)))
    said = sluice("status", code=3).stdout
    assert "unequal" not in said and "verified    1 table equal; the oldest" in said


def test_standard_output_holds_results_alone_and_the_pipeline_is_named_on_standard_error(
    story: Story, sluice: Run, tmp_path: Path
) -> None:
    done = sluice("pause", "apply")
    assert str(tmp_path / "sluice.toml") in done.stderr and "sluice.toml" not in done.stdout
    assert done.stdout.startswith("apply")
    sluice("resume")
    done = sluice("archive", "retain", "--json")
    assert (
        isinstance(json.loads(done.stdout), dict) and str(tmp_path / "sluice.toml") in done.stderr
    )


@pytest.mark.slow
def test_run_until_takes_a_tso_or_a_time_and_never_goes_back(story: Story, sluice: Run) -> None:
    relay = RelayLog.open(story._url)
    at = story._ts
    said = sluice("run-until", "1982-09-05 00:00:00").stdout
    later = relay.control().apply_until_ts
    assert (
        later is not None
        and later > at
        and str(later) in said
        and "1982-09-05 00:00:00.000 UTC" in said
    )
    sluice("run-until", "1982-09-05T02:00:00+02:00")
    assert relay.control().apply_until_ts == later
    assert "nothing goes back" in sluice("run-until", at - 1, code=1).stderr
    assert "neither a TSO" in sluice("run-until", "soon", code=1).stderr
    sluice("pause")
    assert "checkpoint" in sluice("run-until", at, "--follow").stderr
    assert relay.control() == Control(land_paused=True, apply_until_ts=at)
    sluice("resume", "apply")
    assert relay.control() == Control(land_paused=True)


def test_the_command_of_an_error_has_landing_pass_a_misplaced_row(
    story: Story, sluice: Run, tmp_path: Path
) -> None:
    window, at = Checked(tmp_path / "window"), story._ts + 1_000
    change = encode_insert(ORDINARY, row(15))
    with pytest.raises(MisplacedRowError) as error:
        window.check(at, INSERT, change, is_past=True)
    found = re.search(r"`sluice (txn skip \d+)`", error.value.hint)
    assert found is not None
    sluice(*found[1].split())
    skips = LandingControl(RelayLog.open(story._url), frozenset()).skips(0)
    window.check(at, INSERT, change, skips=skips, is_past=True)


def test_skipping_a_transaction_from_the_command_line_works_and_is_listed_and_taken_back(
    story: Story, sluice: Run
) -> None:
    story.insert(ITEM, {"id": 2, "name": "b"})
    at = story._ts
    sluice("txn", "skip", at, "--why", "it's broken")
    listed = json.loads(sluice("overrides", "list", "--json").stdout)
    assert [(d["commit_ts"], d["action"], d["why"], d["used_ms"]) for d in listed] == [
        (at, "skip", "it's broken", None)
    ]
    assert "not used yet" in sluice("overrides", "list").stdout
    assert "sluice overrides remove" in sluice("txn", "skip", at, code=1).stderr
    sluice("overrides", "remove", at)
    assert "no overrides" in sluice("overrides", "list").stdout
    sluice("txn", "skip", at)
    story.apply()
    assert story.rows("item") == [(1, "a")]
    assert "; used " in sluice("overrides", "list").stdout
    assert "no override about" in sluice("overrides", "remove", at + 1, code=1).stderr


def test_what_is_applied_or_not_there_or_something_else_is_not_skipped(
    story: Story, sluice: Run
) -> None:
    applied = story._ts
    story.insert(ITEM, {"id": 2, "name": "b"})
    rows = story._ts
    story.statement(5, "ALTER TABLE `item` ADD COLUMN `w` int", NEW)
    ddl = story._ts
    assert "already" in sluice("txn", "skip", applied, code=1).stderr
    assert "nothing was committed at" in sluice("txn", "skip", ddl - 1, code=1).stderr
    assert f"sluice ddl skip {ddl}" in sluice("txn", "skip", ddl, code=1).stderr
    assert f"sluice txn skip {rows}" in sluice("ddl", "skip", rows, code=1).stderr
    assert "no DDL of job 999" in sluice("ddl", "skip", 999, code=1).stderr
    assert "isn't landed yet" in sluice("txn", "skip", ddl + 1000).stdout


def test_a_ddl_is_replaced_by_job_id_with_statements_from_option_and_file(
    story: Story, sluice: Run, tmp_path: Path
) -> None:
    story.statement(5, "ALTER TABLE `item` ADD COLUMN `w` int", NEW)
    ddl = story._ts
    (tmp_path / "more.sql").write_text("UPDATE item SET w = 5; -- done\n")
    assert sluice("ddl", "replace", story._version, code=2)
    sluice(
        "ddl",
        "replace",
        story._version,
        "--sql",
        "ALTER TABLE item ADD COLUMN w bigint",
        "--file",
        tmp_path / "more.sql",
    )
    (override,) = json.loads(sluice("overrides", "list", "--json").stdout)
    assert (override["commit_ts"], override["sql"]) == (
        ddl,
        ["ALTER TABLE item ADD COLUMN w bigint", "UPDATE item SET w = 5"],
    )
    story.apply()
    assert story.rows("item") == [(1, "a", 5)]


def test_a_window_is_shown_with_its_tables_ddl_and_changed_values(
    story: Story, sluice: Run
) -> None:
    row = {"id": 2, "name": "b"}
    story.insert(ITEM, row)
    inserted = story._ts
    story.update(ITEM, row, {"name": "ü\x1b[31m"})
    updated = story._ts
    story.statement(5, "ALTER TABLE `item` ADD COLUMN `w` int", NEW)
    assert "ALTER TABLE `item` ADD COLUMN `w` int" in sluice("relay", "show").stdout
    said = sluice("relay", "show", inserted, "--rows").stdout
    assert "d.item: 1 transaction, 1 insert, 0 updates, 0 deletes" in said
    assert "insert d.item [id=2] id=2, name='b'" in said
    said = sluice("relay", "show", updated, "--rows").stdout
    assert "update d.item [id=2] name: 'b' → 'ü\\x1b[31m'" in said
    lines = [
        json.loads(line)
        for line in sluice(
            "relay", "show", "--last", 3, "--rows", "--table", "d.item", "--json"
        ).stdout.splitlines()
    ]
    assert [next(iter(line)) for line in lines] == [
        "window",
        "change",
        "window",
        "change",
        "window",
    ]
    assert (
        lines[3]["change"]["old"]["name"] == "b"
        and lines[3]["change"]["new"]["name"] == "ü\x1b[31m"
    )
    assert not [
        line
        for line in sluice("relay", "show", updated, "--table", "d.other").stdout.splitlines()
        if " update " in line
    ]
    said = sluice("relay", "show", updated, "--table", "d.itm").stderr
    assert "no row of d.itm is changed there; did you mean d.item?" in said
    assert (
        sluice("relay", "show", f"before:{updated + 1}").stdout
        == sluice("relay", "show", updated).stdout
    )
    assert "holds no window at" in sluice("relay", "show", updated + 1_000_000, code=1).stderr


@pytest.mark.slow
def test_status_of_a_pipeline_without_a_stack_tells_what_is_known_and_what_is_not(
    story: Story, sluice: Run
) -> None:
    checkpoint = story._ts
    story.insert(ITEM, {"id": 2, "name": "b"})
    said = sluice("status", code=3).stdout
    assert str(story._ts) in said and str(checkpoint) in said and "pumps       unknown" in said
    status = json.loads(sluice("status", "--json", code=3).stdout)
    assert (status["checkpoint"], status["relay"]["hi"]) == (checkpoint, story._ts)
    assert "upstream" in status["errors"]


def test_status_shows_the_jobs_that_are_not_over_how_far_they_are_and_what_they_need(
    story: Story, sluice: Run
) -> None:
    settings = load_settings(os.environ["SLUICE_CONFIG"])
    jobs = Jobs(RelayLog.open(story._url).storage)
    assert orders(settings)["jobs"] == []
    table_of = {"d.item": TableProgress(bytes_in_all=4_000_000, chunks_in_all=4)}
    job = jobs.create("backfill", {}, WriteScope("", ("d.item",)), "ann")
    with job.run(Runner("a test")) as run:
        run.set_totals(table_of)
        run.did("d.item", Part(700, 1_000_000, 1))
        run.end(
            FAILED, message="d.item has a column that the downstream lacks", hint="add it there"
        )
    said = sluice("status", code=3).stdout
    assert (
        "job         backfill: failed, 25 %, 700 rows, 1.0 MB of about 4.0 MB, 1 of 4 chunks"
        in said
    )
    assert "            d.item has a column that the downstream lacks" in said
    assert "            hint: add it there" in said
    (shown,) = orders(settings)["jobs"]
    assert (shown["id"], shown["state"], shown["progress"]["percent"]) == ("backfill", "failed", 25)
    with job.run(Runner("another test")) as run:
        run.set_totals(table_of)
        (shown,) = orders(settings)["jobs"]
        assert job_lines(shown)[0].startswith("backfill: running, ")
        run.end(DONE)
    assert orders(settings)["jobs"] == []
