"""People have one mail when a cause begins and one when it is over, through Airflow's notifier."""

from __future__ import annotations

import dataclasses
import http.server
import logging
import shutil
import tempfile
import threading
import time
from types import SimpleNamespace

import pytest
from airflow.providers.smtp.notifications.smtp import SmtpNotifier

from sluice.airflow import notifying
from sluice.airflow.agent_client import TaskFailedPermanently, call, call_task
from sluice.airflow.notifying import Notifier
from sluice.errors import MachineError
from sluice.etl import retry
from sluice.etl.downstream import Checkpoint
from sluice.etl.downstream.checkpoint import Blocked, InFlight
from sluice.etl.downstream.checkpoint_table import CheckpointTable
from sluice.etl.settings.pipelines import pipelines
from sluice.relay import Failure, notices
from sluice.relay.jobs import DONE, FAILED, Jobs, Runner, WriteScope
from sluice.relay.verification_log import TableVerified, Verifications, VerifiedRun
from sluice.tidb import EtcdClient, NodeStatus, Registry, tso
from tests.sluice_airflow.conftest import CLUSTER_ID
from tests.sluice_airflow.counting_kind import program
from tests.sluice_airflow.mail_sink import mail_sink
from tests.small_disk import small_disk

LATE = Failure(
    "land", "pump 'p1' received the commit of transaction 5 after landing had passed it",
    "bring its rows: `sluice verify` with --repair --apply; then `sluice txn skip 7`", 1,
)  # fmt: skip


class MailOps(SmtpNotifier):
    """The notifier of the documentation."""

    def __init__(self):
        super().__init__(
            to="ops@example.com",
            subject="{{ sluice.subject if sluice else 'Sluice: a run is late' }}",
            html_content="<pre>{{ sluice.text | e if sluice else '' }}</pre>",
        )


@pytest.fixture
def mails(shop, monkeypatch, etcd_url):
    """A sink, and the pipeline `shop`, up to date, which has its mails sent there."""
    file = shop.pipelines / "shop.toml"
    text = file.read_text().replace("http://127.0.0.1:1", etcd_url)
    file.write_text(f'{text}[airflow]\nnotify = "{__name__}.MailOps"\n')
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com")
    monkeypatch.setattr(notifying, "_REPEAT_AFTER_S", 0.0)
    monkeypatch.setattr(tempfile, "tempdir", str(shop.folder))
    monkeypatch.setattr(notices, "SENDING_TIMEOUT_MS", 0)
    shop.move_checkpoint(moment(0))
    with mail_sink(monkeypatch) as sink:
        yield sink


@pytest.fixture
def relay(mails):
    return pipelines()["shop"].settings.open_relay()


def moment(behind_s):
    return str(tso.compose(int((time.time() - behind_s) * 1000)))


def notifier(dag="replicate"):
    return Notifier(pipelines()["shop"], dag, call)


def look():
    notifier("notify").look({})


def fail(text, task, dag="replicate", hint="see to it"):
    error = TaskFailedPermanently(text, hint=hint)
    notifier(dag)({"exception": error, "ti": SimpleNamespace(task_id=task)})


def assert_once(mails, meet, subject, *texts):
    """The cause has one mail, also if the next run meets it again."""
    meet()
    (mail,) = mails.mails
    assert mail["Subject"].startswith(f"Sluice shop: {subject}"), mail["Subject"]
    for text in (*texts, "https://airflow.example.com/sluice/", "?pipeline=shop"):
        assert text in mails.last_text, mails.last_text
    assert " --pipeline shop" in mails.last_text and "Command: sluice " in mails.last_text
    mails.new()
    for _ in range(3):
        meet()
        look()
    assert mails.new() == []


def test_a_late_commit(mails, relay):
    def meet():
        relay.failures.note(dataclasses.replace(LATE, made_ms=time.time_ns()))
        fail(f"land has stopped: MissedCommitError: {LATE.message}", "land", hint=LATE.hint)

    assert_once(mails, meet, "land has stopped: pump 'p1' received", "sluice txn skip 7")
    other = LATE.message.replace("transaction 5", "transaction 6")
    relay.failures.note(Failure("land", other, LATE.hint, 2))
    fail(f"land has stopped: MissedCommitError: {other}", "land", hint=LATE.hint)
    first, second = sorted(mails.new())
    assert "Over: land has stopped" in first and "transaction 6" in second
    relay.failures.clear("land")
    look()
    (over,) = mails.new()
    assert over.startswith("Sluice shop: Over: land has stopped") and "transaction 6" in over


def test_a_lag(mails, relay, shop):
    shop.move_checkpoint(moment(400))
    assert_once(mails, look, "the downstream is 6 min", "sluice top --once --pipeline shop")
    shop.move_checkpoint(moment(0))
    look()
    assert [subject.partition(" is ")[0] for subject in mails.new()] == [
        "Sluice shop: Over: the downstream"
    ]


def test_rows_that_differ(mails, relay):
    def verify(at, **differences):
        tables = tuple(
            TableVerified(f"shop.{name}", at, at, 10, 10, rows, "upstream", f"verify-{at}")
            for name, rows in differences.items()
        )
        run = VerifiedRun(f"verify-{at}", at, at, 2.0, "upstream", tables)
        Verifications(relay).note(run)

    def meet():
        fail("at the checkpoint 5: shop.orders: 3 rows differ", "compare", "verify")
        fail("3 rows differ: shop.orders {'id': 7}: missing", "watch", "verify_continuously")

    verify(1, orders=3, lines=0)
    assert_once(mails, meet, "rows of shop.orders differ", "sluice verify shop.orders --pipeline")
    verify(2, orders=3, lines=1, parts=1)
    look()
    (both,) = mails.new()
    assert both.endswith("differ from the upstream (and 1 more)")
    verify(3, orders=0, lines=1, parts=1)
    look()
    assert mails.new() == ["Sluice shop: Over: rows of shop.orders differ from the upstream"]


def test_a_restore_drill_that_failed(mails, relay):
    jobs, why = Jobs.for_pipeline(relay), "the rows of shop.orders are missing"

    def drill(state, message=""):
        job = jobs.find_open("drill") or jobs.create("drill", {}, WriteScope("drill", ()), "ann")
        with job.run(Runner("a test")) as run:
            look()
            run.end(state, message=message)

    def meet():
        drill(FAILED, why)
        fail(f"drill has stopped: {why}", "drill", "restore_drill")

    assert_once(mails, meet, "the restore drill drill failed", "sluice jobs show drill", why)
    drill(FAILED, "no room")
    look()
    first, second = sorted(mails.new())
    assert "Over: the restore drill" in first and "no room" in second
    drill(DONE)
    look()
    assert mails.new() == ["Sluice shop: Over: the restore drill drill failed: no room"]


def test_a_relay_log_whose_disk_is_full_is_one_cause_for_all_tasks(mails, shop, monkeypatch):
    monkeypatch.setattr(notifying, "_REPEAT_AFTER_S", 3600.0)
    with small_disk(shop.folder, 1 << 20) as disk:
        shutil.copytree(shop.folder / "log", disk / "log")
        file = shop.pipelines / "shop.toml"
        file.write_text(file.read_text().replace(f"{shop.folder}/log", f"{disk}/log"))
        with pytest.raises(OSError, match="No space left") as full:
            (disk / "junk").write_bytes(b"x" * (2 << 20))
        for _ in range(2):
            for who in ("landing", "the task archive"):
                wait(100, monkeypatch, who, f"{full.value} {disk}")
        (mail,) = mails.mails
        assert mail["Subject"].startswith(
            "Sluice shop: landing has waited for a minute: [Errno 28]"
        )
        assert "sluice archive status --pipeline shop" in mails.last_text


def test_a_pump_whose_disk_is_full(mails, relay, etcd_url):
    writable = [0]

    class Metrics(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            free = 1e9 if not writable[0] else 1e12
            self.send_response(200)
            self.end_headers()
            self.wfile.write(
                f"binlog_pump_storage_writable {writable[0]}\n"
                f'binlog_pump_storage_storage_size_bytes{{type="available"}} {free}\n'.encode()
            )

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with EtcdClient(etcd_url, timeout_s=60) as etcd:
        host = f"127.0.0.1:{server.server_address[1]}"
        Registry(etcd).register_pump(NodeStatus("p1", host, "online", max_commit_ts=1))
        subject = "the disk of pump p1 has 1.0 GB left, and refuses binlogs"
        assert_once(mails, look, subject, "sluice pumps list")
        writable[0] = 1
        look()
    server.shutdown()
    server.server_close()
    assert mails.new() == [f"Sluice shop: Over: {subject}"]


def test_a_batch_that_the_downstream_refuses(mails, relay, shop, mariadb, session):
    target = mariadb.downstream
    file = shop.pipelines / "shop.toml"
    file.write_text(
        file.read_text().replace(
            '[downstream]\ntype = "file"\n',
            f'[downstream]\nhost = "127.0.0.1"\nport = {target.port}\nuser = "{target.user}"\n',
        )
    )
    table = CheckpointTable(session, CLUSTER_ID)
    table.create()
    at = Checkpoint(int(moment(0)), 0)

    def refuse(token):
        flying = InFlight(int(moment(0)) + 1, refused=Blocked(token, f"row {token} is missing"))
        table.save(dataclasses.replace(at, in_flight=flying), first=table.load() is None)
        session.commit()

    def meet():
        relay.failures.note(Failure("apply", "row 7 is missing", "bring it back", time.time_ns()))
        fail("apply has stopped: RefusedError: row 7 is missing", "apply")

    refuse("4f")
    assert_once(mails, meet, "the downstream refused changes: row 4f", "sluice accept 4f")
    refuse("50")
    meet()
    assert len([each for each in mails.new() if "row 50 is missing" in each]) == 1
    table.save(at)
    session.commit()
    relay.failures.clear("apply")
    look()
    assert mails.new() == ["Sluice shop: Over: the downstream refused changes: row 50 is missing"]


def test_an_error_that_only_its_task_shows_and_each_of_its_own(mails, relay):
    def meet():
        fail("settings: no such key", "plan", "snapshot")

    assert_once(mails, meet, "the task plan of the DAG snapshot failed: settings", "see to it")
    fail("settings: another key", "plan", "snapshot")
    assert len(mails.new()) == 1


def test_a_mail_that_was_refused_is_sent_by_the_next_look(mails, relay, shop):
    shop.move_checkpoint(moment(400))
    mails.refusals = 1
    with pytest.raises(Exception, match="not now"):
        look()
    assert mails.new() == []
    look()
    assert len(mails.new()) == 1
    look()
    assert mails.new() == []


def test_what_a_task_failed_with_is_sent_once_an_hour_while_the_relay_log_is_away(
    mails, relay, shop, monkeypatch
):
    (shop.folder / "log").rename(shop.folder / "away")
    (shop.folder / "log").write_text("not a folder")
    monkeypatch.setattr(notifying, "_REPEAT_AFTER_S", 3600.0)
    text = f"{shop.folder}: no answer after"
    fail(f"{text} 7 s", "land")
    fail(f"{text} 9 s", "land")
    (subject,) = mails.new()
    assert subject.startswith("Sluice shop: /") and "no answer" in subject


def wait(seconds, monkeypatch, who="the task apply", why="no route to db1"):
    """One failure a second."""
    backoff = retry.RetryBackoff(logging.getLogger("sluice"), who)
    with notifying.notified_of_waits(pipelines()["shop"], call), monkeypatch.context() as patch:
        for second in range(seconds):
            patch.setattr(
                retry, "time", SimpleNamespace(monotonic=lambda: 1_000.0 + second, time=time.time)
            )
            backoff.after(MachineError(why))


@pytest.mark.parametrize(("seconds", "times"), [(60, 0), (61, 1), (600, 1)])
def test_a_wait_of_a_minute_has_one_mail(mails, relay, monkeypatch, seconds, times):
    wait(seconds, monkeypatch)
    expected = "Sluice shop: the task apply has waited for a minute: no route to db1"
    assert mails.new() == [expected] * times


def test_a_wait_that_the_next_run_s_task_meets_again_has_no_second_mail_until_it_was_over(
    mails, relay, shop, monkeypatch
):
    shop.move_checkpoint(moment(400))
    for _ in range(3):
        wait(100, monkeypatch)
    assert len(mails.new()) == 1
    look()
    assert mails.new() == [], "the lag follows from it"
    shop.move_checkpoint(moment(0))
    look()
    assert mails.new() == [
        "Sluice shop: Over: the task apply has waited for a minute: no route to db1"
    ]
    wait(100, monkeypatch)
    assert len(mails.new()) == 1


def test_a_notifier_that_fails_is_logged_and_the_task_goes_on(mails, relay, monkeypatch, caplog):
    mails.refusals = 9
    wait(100, monkeypatch)
    assert mails.new() == [] and "the notifier failed" in caplog.text


notified = []


def remember(context):
    notified.append(str(context["exception"]))
    assert isinstance(context["exception"], notifying.TaskWaits)


def test_a_wait_in_the_other_environment_is_notified_here(shop):
    file = shop.pipelines / "shop.toml"
    text = f'[airflow]\npython = "{program(shop.folder)}"\nnotify = "{__name__}.remember"\n'
    file.write_text(file.read_text() + text)
    call_task(pipelines()["shop"], "wait")
    assert notified == ["the task wait has waited for a minute: no route"]


def test_both_sides_mean_the_same_logger():
    assert notifying.LONG_WAITS == retry.LONG_WAITS


def test_the_digest_is_a_mail_with_page_and_command(mails, relay):
    text = notifier("digest").digest({})
    (mail,) = mails.mails
    assert mail["Subject"].startswith("Sluice shop: ")
    assert "Page: https://airflow.example.com/sluice/overview?pipeline=shop" in mails.last_text
    assert "sluice top --once --pipeline shop" in text and "Windows landed: 0" in text
