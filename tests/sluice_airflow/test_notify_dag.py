"""In an Airflow with all of its processes a cause has one mail, by the documented notifier."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from sluice.devstack.control import AirflowClient
from sluice.devstack.repository import DAGS
from sluice.devstack.stack import Stack
from sluice.tidb import tso
from tests.sluice_airflow.conftest import shop_pipeline
from tests.sluice_airflow.mail_sink import CONNECTION, mail_sink
from tests.sluice_airflow.test_documented_dags import PARTS, STUCK, Airflow, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FAILING = """
def run(self, settings, job, runner, show):
    with job.run(runner):
        raise ValueError("the rows of shop.orders are missing")

Stuck.run = run
"""


def documented_notifier():
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "notify.md").read_text(
        encoding="utf-8"
    )
    found = re.search(
        r"^    from airflow\.providers\.smtp.*?\n\n(?=\S)", page, re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return "\n".join(line.removeprefix("    ") for line in found[0].splitlines())


@pytest.fixture(scope="module")
def mails():
    with pytest.MonkeyPatch.context() as patch, mail_sink(patch) as sink:
        yield sink


@pytest.fixture(scope="module")
def airflow(tmp_path_factory, mails):
    folder = tmp_path_factory.mktemp("notified")
    shop = shop_pipeline(folder, "home/pipelines", '[airflow]\nnotify = "ops_mail.OpsMail"\n')
    (folder / "dags").mkdir()
    connection = f"import os\nos.environ['{CONNECTION}'] = {os.environ[CONNECTION]!r}\n"
    (folder / "dags" / "ops_mail.py").write_text(connection + documented_notifier())
    (folder / "dags" / "notify.py").write_text((DAGS / "notify.py").read_text())
    text = (DAGS / "verify.py").read_text().replace("from __future__", "# from __future__")
    (folder / "dags" / "verify.py").write_text(STUCK + FAILING + text)
    stack = Stack(folder / "home", dags=folder / "dags")
    try:
        stack.up(PARTS)
        yield Airflow(AirflowClient(stack.home, stack.site().ports["airflow"]), shop)
    finally:
        stack.down()


def finished(airflow, run):
    eventually(
        lambda: airflow.call("GET", run)["state"] in ("success", "failed"),
        lambda: f"{airflow.tasks(run)}",
    )
    return airflow.call("GET", run)["state"]


@pytest.mark.beyond_ci
def test_a_job_that_fails_in_each_run_has_one_mail_and_a_lag_its_own(airflow, mails):
    for _ in range(2):
        run = airflow.trigger("sluice_verify_shop", logical_date=None)
        assert finished(airflow, run) == "failed", airflow.log(run, "compare")
    (mail,) = mails.mails
    assert "failed" in mail["Subject"] and "shop.orders are missing" in mails.last_text
    assert "/sluice/jobs?pipeline=shop#job-" in mails.last_text
    mails.new()
    airflow.shop.move_checkpoint(str(tso.compose(int((time.time() - 400) * 1000))))
    for _ in range(2):
        run = airflow.trigger("sluice_notify_shop", logical_date=None)
        assert finished(airflow, run) == "success", airflow.log(run, "look")
    (lag,) = [subject for subject in mails.new() if "behind" in subject]
    assert lag.startswith("Sluice shop: the downstream is 6 min")
