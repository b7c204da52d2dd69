"""What people are notified of is found in the state of a pipeline, and named the same each time."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.operate.notices import KINDS, TaskReport, find_causes
from sluice.etl.operate.notices.causes import Disks, PumpDisk
from sluice.etl.operate.overview import WORKING, Overview, overview
from sluice.relay import Failure
from sluice.relay.jobs import DONE, FAILED, Jobs, Runner, WriteScope
from sluice.relay.verification_log import TableVerified, Verifications, VerifiedRun
from sluice.tidb import tso
from tests.relay.relaykit import window

LATE = Failure(
    "land", "pump 'p1' received the commit of transaction 5 after landing had passed it",
    "bring its rows: `sluice verify` with --repair --apply; then `sluice txn skip 7`", 1,
)  # fmt: skip
MAX_LAG_MS = 300_000
ROOM = Disks(10**12)


def ago(ms):
    return tso.compose(time.time_ns() // 1_000_000 - ms)


@pytest.fixture
def relay(files_settings, files_relay):
    """A log that ends now, of which all is applied."""
    files_relay.commit(window(ago(9_000_000), hi := ago(0), landed_ms=0))
    Path(files_settings.file.dir, "savepoint").write_text(f"commitTS = {hi}\n")
    return files_relay


def behind(settings, ms):
    Path(settings.file.dir, "savepoint").write_text(f"commitTS = {ago(ms)}\n")


def verified(relay, **differences):
    tables = tuple(
        TableVerified(f"shop.{name}", 5, 1, 10, 10, rows, "upstream", "verify-1")
        for name, rows in differences.items()
    )
    at_ms = time.time_ns() // 1_000_000
    Verifications(relay).note(VerifiedRun("verify-1", 5, at_ms, 2.0, "upstream", tables))


def failed_job(settings, relay, kind, message):
    scope = WriteScope(downstream_name(settings.target), ())
    job = Jobs.for_pipeline(relay).create(kind, {}, scope, "ann")
    with job.run(Runner("a test")) as run:
        run.end(FAILED, message=message, hint="see to it")
    return job.id


def look(settings, **more):
    more = {"disks": ROOM, "max_lag_ms": MAX_LAG_MS} | more
    return find_causes(overview(settings, 60.0), **more)


def keys(settings, **more):
    return list(look(settings, **more).found)


def refused(seen: Overview, token: str) -> Overview:
    part = dataclasses.replace(seen.downstream, refused="row 7 is missing", refusal=token)
    return dataclasses.replace(seen, downstream=part)


def test_nothing_is_found_where_nothing_is_wrong(files_settings, relay):
    verified(relay, orders=0)
    assert keys(files_settings) == []


def test_a_late_commit_has_its_own_command_and_each_one_its_own_key(files_settings, relay):
    relay.failures.note(LATE)
    (first,) = look(files_settings).found.values()
    assert (first.kind, first.command) == ("stopped", "sluice verify")
    assert "after landing had passed it" in first.text and "sluice txn skip 7" in first.text
    relay.failures.note(dataclasses.replace(LATE, made_ms=2))
    assert keys(files_settings) == [first.key], "the next run meets the same"
    other = LATE.message.replace("transaction 5", "transaction 6")
    relay.failures.note(dataclasses.replace(LATE, message=other))
    assert keys(files_settings) != [first.key]


def test_a_refused_batch_is_one_cause_with_the_failure_of_its_task(files_settings, relay):
    relay.failures.note(Failure("apply", "row 7 is missing", "bring it back", 1))
    seen = overview(files_settings, 60.0)
    found = find_causes(refused(seen, "4f"), max_lag_ms=MAX_LAG_MS).found
    assert list(found) == ["refused:4f"] and "sluice accept 4f" in found["refused:4f"].text
    (known,) = found.values()
    away = dataclasses.replace(seen, errors={"downstream": "it is away"})
    later = find_causes(away, max_lag_ms=MAX_LAG_MS, known=[known])
    assert later.found == {} and not later.has_ended(known)


def test_a_lag_is_a_cause_from_the_setting_on_and_over_at_half_of_it(files_settings, relay):
    behind(files_settings, MAX_LAG_MS - 60_000)
    assert keys(files_settings) == []
    behind(files_settings, MAX_LAG_MS + 1_000)
    lag = look(files_settings).found["behind"]
    assert lag.text.startswith("the downstream is 5 min ") and not lag.is_quiet
    behind(files_settings, MAX_LAG_MS - 60_000)
    assert keys(files_settings, known=[lag]) == ["behind"]
    behind(files_settings, MAX_LAG_MS // 2 - 60_000)
    assert keys(files_settings, known=[lag]) == []


def test_a_lag_is_quiet_while_something_has_stopped_or_a_person_has_paused_it(
    files_settings, relay
):
    behind(files_settings, MAX_LAG_MS + 1_000)
    relay.change_control(lambda control: dataclasses.replace(control, apply_paused=True))
    assert look(files_settings).found["behind"].is_quiet
    relay.change_control(lambda control: dataclasses.replace(control, apply_paused=False))
    assert not look(files_settings).found["behind"].is_quiet
    relay.failures.note(LATE)
    assert look(files_settings).found["behind"].is_quiet


def test_each_table_whose_rows_differ_is_a_cause_until_it_is_equal(files_settings, relay):
    verified(relay, orders=3, customers=0, lines=1)
    assert set(keys(files_settings)) == {"differences:shop.orders", "differences:shop.lines"}
    verified(relay, orders=0, lines=1)
    assert keys(files_settings) == ["differences:shop.lines"]


def test_a_failed_drill_is_one_cause_until_one_succeeds(files_settings, relay):
    name = failed_job(files_settings, relay, "drill", "the rows of shop.orders aren't there")
    (first,) = look(files_settings).found.values()
    assert (first.kind, first.command) == ("drill", f"sluice jobs show {name}")
    assert first.page == f"jobs#job-{name}"
    with Jobs.for_pipeline(relay).get(name).run(Runner("the next attempt")) as run:
        trying = look(files_settings)
        assert trying.found == {} and not trying.has_ended(first)
        run.end(DONE)
    assert look(files_settings).has_ended(first)


@pytest.mark.parametrize(
    ("disks", "expected"),
    [
        (Disks(4 * 10**9), ["disk:relay"]),
        (Disks(10**12, 2.5), ["disk:relay"]),
        (Disks(10**12, 30.0), []),
        (Disks(10**12, pumps=(PumpDisk("p1", 10**12, False),)), ["disk:pump:p1"]),
        (Disks(10**12, pumps=(PumpDisk("p1", 10**9, True),)), ["disk:pump:p1"]),
        (Disks(10**12, pumps=(PumpDisk("p1", 10**12, True),)), []),
    ],
)
def test_a_disk_with_little_room_is_a_cause(files_settings, relay, disks, expected):
    assert keys(files_settings, disks=disks) == expected


def test_a_disk_counts_as_having_room_only_when_it_was_looked_at(files_settings, relay):
    short = Disks(10**9, pumps=(PumpDisk("p1", 0, False),))
    known = look(files_settings, disks=short).found.values()
    assert {one.key for one in known} == {"disk:relay", "disk:pump:p1"}
    for disks in (None, Disks()):
        assert not any(map(look(files_settings, disks=disks).has_ended, known))
    room = Disks(10**12, pumps=(PumpDisk("p1", 10**12, True),))
    assert all(map(look(files_settings, disks=room).has_ended, known))


def report(text, task="work", **more):
    return TaskReport("bootstrap", task, text, **more)


def test_a_task_s_failure_is_the_cause_that_the_state_shows_for_it(files_settings, relay):
    relay.failures.note(LATE)
    verified(relay, orders=3)
    failed_job(files_settings, relay, "bootstrap", "table shop.t is not empty")
    known = keys(files_settings)
    assert {key.partition(":")[0] for key in known} == {"stopped", "differences", "job"}
    for met in (
        report(f"land has stopped: MissedCommitError: {LATE.message}", "land"),
        TaskReport("verify", "compare", "at the checkpoint 5: shop.orders: 3 rows differ"),
        report("bootstrap has stopped: table shop.t is not empty"),
    ):
        assert keys(files_settings, report=met) == known
    (own,) = set(keys(files_settings, report=report("no such file", hint="see"))) - set(known)
    assert own.startswith("task:bootstrap:work:")


def test_an_error_that_no_state_shows_is_the_same_in_the_next_run_and_for_a_day(
    files_settings, relay
):
    (first,) = look(files_settings, report=report("no answer after 3.5 s")).found.values()
    assert keys(files_settings, report=report("no answer after 12 s")) == [first.key]
    assert keys(files_settings, report=report("no answer from db2")) != [first.key]
    causes = look(files_settings)
    now = causes.seen.at_ms
    for age_ms, ended in ((3_600_000, False), (90_000_000, True)):
        assert causes.has_ended(dataclasses.replace(first, seen_ms=now - age_ms)) is ended


def test_a_wait_is_over_when_its_part_goes_on(files_settings, relay):
    text = "the task apply has waited for a minute: db1:3306: no route"
    met = look(files_settings, report=report(text, waits=True))
    (wait,) = met.found.values()
    assert wait.key.startswith("waits:apply:")
    assert met.seen.downstream.state == WORKING and met.has_ended(wait)
    behind(files_settings, MAX_LAG_MS + 1_000)
    causes = look(files_settings, known=[wait])
    assert not causes.has_ended(wait) and causes.found["behind"].is_quiet


def test_a_wait_for_a_full_disk_is_about_the_disk_whichever_task_waits(files_settings, relay):
    text = "has waited for a minute: [Errno 28] No space left on device: '/relay/parts/x'"
    found = {
        keys(files_settings, report=report(f"{who} {text}", waits=True))[0]
        for who in ("landing", "the task archive")
    }
    assert found == {"disk:full"}


def test_while_the_relay_log_does_not_answer_nothing_is_over(files_settings, relay):
    seen = dataclasses.replace(overview(files_settings, 60.0), errors={"relay": "gone"})
    relay.failures.note(LATE)
    (known,) = look(files_settings).found.values()
    causes = find_causes(seen, max_lag_ms=MAX_LAG_MS, known=[known])
    assert not any(causes.has_ended(dataclasses.replace(known, kind=kind)) for kind in KINDS)
