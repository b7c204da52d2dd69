"""The digest of a day has what Sluice keeps of it, and says what needs an operator."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.operate.notices.digest import write_digest
from sluice.relay.jobs import FAILED, Jobs, Runner, WriteScope
from sluice.relay.measures import (
    LAND,
    ConflictHistory,
    CounterDocument,
    CounterStore,
    RefusalHistory,
    source_of,
)
from sluice.relay.measures.points import LagStep
from sluice.relay.notices import Notice, Notices
from sluice.relay.verification_log import TableVerified, Verifications, VerifiedRun
from sluice.tidb import EtcdClient, NodeStatus, Registry, tso
from tests.relay.relaykit import window

MINUTE_MS = 60_000


@pytest.fixture
def now():
    """The test's own moment: with an hour between collecting and running it, all would be late."""
    return time.time_ns() // 1_000_000


@pytest.fixture
def relay(files_settings, files_relay, etcd_url, now):
    """A log that ends now, of which all is applied, and a pump."""
    with EtcdClient(etcd_url, timeout_s=60) as etcd:
        ahead = tso.compose(now + 3_600_000)
        Registry(etcd).register_pump(NodeStatus("p1", "p1:1", "online", max_commit_ts=ahead))
    files_relay.commit(window(tso.compose(now - 10**8), hi := tso.compose(now), landed_ms=0))
    Path(files_settings.file.dir, "savepoint").write_text(f"commitTS = {hi}\n")
    return files_relay


def count(settings, relay, lags, now):
    """One step of 10 s in each 5 minutes, the newest last, of these lags (ms)."""
    store, applied = CounterStore(relay), source_of(downstream_name(settings.target))
    for number, lag_ms in enumerate(lags, 1):
        at_ms = now - (len(lags) - number) * 5 * MINUTE_MS
        for source in (LAND, applied):
            step = LagStep(at_ms, 10_000, lag_ms, 10, 2, 3, 1, 1)
            store.note(
                source, CounterDocument(noted_ms=at_ms, hour=(step,)), f"{source}{now}", number
            )


def lines(settings, now, name="shop"):
    return write_digest(settings, name, now).text.splitlines()


def test_lag_and_counts_are_those_of_the_last_24_hours_alone(files_settings, relay, now):
    count(files_settings, relay, [999_999], now - 25 * 60 * MINUTE_MS)
    count(files_settings, relay, [100.0 * number for number in range(1, 21)], now)
    found = lines(files_settings, now)
    assert "Lag: p50 1,000 ms, p95 1,900 ms, max 2,000 ms (of the longest in each 5 minutes)" in (
        found
    )
    for line in (
        "Row changes: 200", "Transactions: 40", "Windows landed: 60", "DDL landed: 20",
        "Errors, retried ones included: 40", "Restorable: no moment yet", "Jobs: none",
        "Transactions refused by the downstream: 0", "Nothing needs an operator.",
        "Now: sluice top --once --pipeline shop",
        "Verification: both sides were never compared in one run",
    ):  # fmt: skip
        assert line in found, (line, found)
    assert found[0].startswith("Pipeline shop, 20") and found[0].endswith(" UTC")
    assert write_digest(files_settings, "shop", now).subject.startswith(
        "Sluice shop: all is well, "
    )


def test_what_needs_an_operator_stands_first_and_in_the_subject(files_settings, relay, now):
    lasting = Notice("behind", "behind", "6 min behind\nHint: look", "sluice top", "overview")
    Notices(relay.place).take([lasting], lambda _: False, now - MINUTE_MS)
    at_ms = now - 5_000
    tables = (TableVerified("shop.orders", 5, at_ms, 70, 700, 3, "upstream", "verify-1"),)
    Verifications(relay).note(VerifiedRun("verify-1", 5, at_ms, 2.0, "upstream", tables))
    job = Jobs.for_pipeline(relay).create("restore", {}, WriteScope("x", ()), "ann")
    with job.run(Runner("a test")) as run:
        run.end(FAILED, message="no room")
    digest = write_digest(files_settings, "", now)
    assert digest.subject.startswith("Sluice: 1 to look at, 20") and digest.subject.endswith("UTC")
    text = digest.text.splitlines()
    assert text[2].startswith("! 6 min behind (since 20") and text[2].endswith(" UTC)")
    assert any(
        line.startswith("Verification: verify-1 at ")
        and line.endswith("70 rows compared, 3 rows differ")
        for line in text
    )
    assert "Rows differ in: shop.orders" in text
    assert any(line.startswith("  restore: failed at ") and "no room" in line for line in text)
    assert "--pipeline" not in digest.text


def test_a_pipeline_that_has_done_nothing_has_a_digest(files_settings, files_relay, now):
    found = lines(files_settings, now)
    assert "Lag: nothing was recorded in these hours" in found and "Row changes: 0" in found


def test_transactions_that_were_refused_in_the_last_24_hours_are_counted_and_named(
    files_settings, files_relay, now
):
    history = RefusalHistory(files_relay)
    history.note("yesterday's", 3, now - 25 * 60 * MINUTE_MS)
    history.note("table d.item, key id=5, delete at commit_ts 7: missing", 7, now - MINUTE_MS)
    history.note("table d.item, key id=5, delete at commit_ts 7: missing still", 7, now - 9)
    history.note("no single one was found", 0, now - 8)
    history.note("no single one was found", 0, now - 7)
    found = lines(files_settings, now)
    at = found.index("Transactions refused by the downstream: 2")
    first, second = found[at + 1 : at + 3]
    assert first.startswith("  2 attempts, last at 20")
    assert first.endswith(" UTC: table d.item, key id=5, delete at commit_ts 7: missing still")
    assert second.startswith("  2 attempts") and second.endswith(": no single one was found")
    assert "yesterday" not in "\n".join(found)


def test_changes_that_lost_conflicts_are_counted_where_there_ever_were_any(
    files_settings, files_relay, now
):
    assert "younger" not in "\n".join(lines(files_settings, now))
    yesterday, today = tso.compose(now - 25 * 60 * MINUTE_MS), tso.compose(now - MINUTE_MS)
    lost = [(yesterday, yesterday + 1, "d.a"), (today, today + 1, "d.a"), (today, today, "d.b")]
    ConflictHistory(files_relay).note(lost)
    line = "Changes that lost against younger ones of the downstream: 2 (sluice txn conflicts)"
    assert line in lines(files_settings, now)
