"""Every DAG file imports quickly, without errors, and does no work while it is parsed."""

import contextlib
import importlib
import shlex
import subprocess
import sys
import time
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from sluice.relay import Control, RelayLog
from tests.cli.documented import in_sentences, typed

DAGS = Path(__file__).resolve().parents[2] / "dags"
HEAVY = ("pyspark", "pyarrow", "pandas", "grpc", "pymysql", "great_expectations")


@pytest.fixture(scope="module")
def dag_bag(tmp_path_factory):
    with parsed(tmp_path_factory.mktemp("airflow")) as found:
        yield found


@contextlib.contextmanager
def parsed(home, pipelines=None):
    """The DAGs as Airflow finds them, with a folder of pipelines or without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SLUICE_CONFIG", raising=False)
        patch.delenv("SLUICE_PIPELINES", raising=False)
        if pipelines is not None:
            patch.setenv("SLUICE_PIPELINES", str(pipelines))
        patch.setenv("AIRFLOW_HOME", str(home))
        patch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
        patch.setenv("AIRFLOW__CORE__UNIT_TEST_MODE", "False")
        patch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{home}/airflow.db")
        from airflow.dag_processing.dagbag import DagBag

        yield DagBag(dag_folder=str(DAGS))


def test_all_dag_files_import(dag_bag):
    assert dag_bag.import_errors == {}
    assert "sluice_replicate" in dag_bag.dags


def test_airflow_knows_its_commands_that_documents_give(dag_bag):
    from airflow.cli.cli_parser import get_parser

    shown = {command for command in typed() if command.startswith("airflow ")} | in_sentences(
        "airflow"
    )
    commands = [shlex.split(command)[1:] for command in sorted(shown)]
    assert ["db", "clean"] in [words[:2] for words in commands]
    # its command is of a provider that Sluice doesn't need
    for words in (words for words in commands if words[0] != "celery"):
        assert callable(get_parser().parse_args(words).func), words


def test_each_pipeline_has_dags_of_its_own_and_a_bad_file_takes_none_away_from_the_others(
    dag_bag, tmp_path
):
    (folder := tmp_path / "pipelines").mkdir()
    for name, host in (("shop", "db1"), ("search", "db2"), ("twin", "db2"), ("my shop", "db3")):
        (folder / f"{name}.toml").write_text(
            '[upstream]\npd-urls = "p"\n[relay]\nurl = "file:///r"\n[downstream]\nhost ='
            f' "{host}"\n'
        )
    (folder / "broken.toml").write_text("[upstream\n")
    with parsed(tmp_path, folder) as found:
        kinds = set(dag_bag.dags)
        assert set(found.dags) == {
            f"{kind}_{name}" for kind in kinds for name in ("shop", "search", "twin", "broken")
        }
        assert {dag_id for dag_id, dag in found.dags.items() if "shop" in dag.tags} == {
            f"{k}_shop" for k in kinds
        }
        ((file, said),) = found.import_errors.items()
        assert Path(file).name == "pipelines.py"
        assert all(f"{name}.toml" in said for name in ("twin", "my shop", "broken"))
        assert "/shop.toml" not in said
        from sluice.airflow.agent_client import TaskFailedPermanently

        land = found.dags["sluice_replicate_broken"].get_task("land").python_callable
        with pytest.raises(TaskFailedPermanently, match=r"broken\.toml"):
            land(params={"run_seconds": 1})


SHARED = """
[airflow]
dag-prefix = "replica."
pool = "copies"
queue = "spark"
priority-weight = 7
owner = "data-platform"
tags = ["gold"]
timeout = "12h"
notify = "tests.dags.test_dags.remember"
deadline = "2h"
owner-link = "mailto:data@example.com"
[airflow.access-control]
Ops = "can_read, can_edit"
"""


def shop_file(folder, more=""):
    folder.mkdir(exist_ok=True)
    (folder / "shop.toml").write_text(
        '[upstream]\npd-urls = "p"\n[relay]\nurl = "file:///r"\n[downstream]\nhost = "db1"\n' + more
    )
    return folder


def test_the_dags_stand_in_a_shared_airflow_as_their_pipeline_says(tmp_path):
    with parsed(tmp_path, shop_file(tmp_path / "pipelines", SHARED)) as found:
        assert found.import_errors == {}
        replicate, restore = (
            found.dags[f"replica.{kind}_shop"] for kind in ("replicate", "restore")
        )
        assert set(restore.tags) == {"sluice", "shop", "gold"} and restore.owner == "data-platform"
        land, work = replicate.get_task("land"), restore.get_task("work")
        assert (land.pool, land.queue, land.priority_weight) == ("default_pool", "spark", 7)
        assert (work.pool, work.queue, work.execution_timeout) == (
            "copies",
            "spark",
            timedelta(hours=12),
        )
        assert restore.deadline and not replicate.deadline
        assert restore.owner_links == {"data-platform": "mailto:data@example.com"}
        assert restore.access_control["Ops"]["DAGs"] == {"can_read", "can_edit"}
        assert (replicate.dag_display_name, restore.dag_display_name) == (
            "Sluice: replicate (shop)",
            "Sluice: restore (shop)",
        )
        assert all(
            dag.description and dag.is_paused_upon_creation is None for dag in (replicate, restore)
        )
        file = tmp_path / "pipelines" / "shop.toml"
        file.write_text(file.read_text().replace("file:///r", f"file://{tmp_path}/relay"))
        for _ in range(2):  # the second run fails with the same
            for callback in work.on_failure_callback:
                callback({"exception": ValueError("no")})
        notified = importlib.import_module("tests.dags.test_dags").called
        assert [str(context["exception"]) for context in notified] == ["no"]
        assert notified[0]["sluice"].kind == "task"
        looking = found.dags["replica.notify_shop"]
        assert looking.timetable.delta == timedelta(minutes=5)
        assert looking.get_task("look").retries == 0


called = []


def remember(context):
    called.append(context)


def test_an_error_in_airflow_s_section_is_reported_and_takes_no_dag_away(tmp_path):
    for wrong in (
        'dag-prefix = "a b"',
        'timeout = "soon"',
        'differences = "no"',
        'digest = "07:00"',
        'notify-lag = "long"',
        'colour = "red"',
        "pool = 3",
    ):
        folder = shop_file(tmp_path / "pipelines", f"[airflow]\n{wrong}\n")
        with parsed(tmp_path, folder) as found:
            assert "sluice_replicate_shop" in found.dags
            (said,) = found.import_errors.values()
            assert "shop.toml" in said and wrong.partition(" ")[0] in said


def test_a_dag_that_runs_by_itself_shows_its_interval_of_the_settings_as_its_schedule(tmp_path):
    settings = (
        '[archive]\nsnapshots-every = "12h"\ndrills-every = ""\n[verify]\nevery = "1d"\n'
        '[quality]\nevery = "1d"\nhours = "22-1"\n'
    )
    with parsed(tmp_path, shop_file(tmp_path / "pipelines", settings)) as found:
        shown = {
            kind: found.dags[f"sluice_{kind}_shop"].timetable
            for kind in ("snapshot", "restore_drill", "verify", "quality")
        }
        assert shown["snapshot"].delta == timedelta(hours=12)
        assert shown["verify"].delta == timedelta(days=1)
        assert type(shown["restore_drill"]).__name__ == "NullTimetable"
        assert shown["quality"].expression == "0 0,22,23 * * *"


def test_a_digest_comes_at_a_time_of_day_in_a_zone(tmp_path):
    for digest, expected in (
        ("7:05 Europe/Berlin", ("5 7 * * *", "Europe/Berlin")),
        ("23:00", ("0 23 * * *", "UTC")),
    ):
        settings = f'[airflow]\nnotify = "tests.dags.test_dags.remember"\ndigest = "{digest}"\n'
        with parsed(tmp_path, shop_file(tmp_path / "pipelines", settings)) as found:
            assert found.import_errors == {}
            shown = found.dags["sluice_digest_shop"].timetable
            assert (shown.expression, str(shown.timezone)) == expected
    for wrong in ("24:00", "7", "07:00 Mars/North"):
        settings = f'[airflow]\nnotify = "x.y"\ndigest = "{wrong}"\n'
        with parsed(tmp_path, shop_file(tmp_path / "pipelines", settings)) as found:
            assert "sluice_digest_shop" not in found.dags
            (said,) = found.import_errors.values()
            assert "[airflow] digest" in said


def test_schedules_have_the_defaults_of_the_settings(tmp_path):
    from sluice.etl.settings import load_settings

    with parsed(tmp_path, shop_file(tmp_path / "pipelines")) as found:
        settings = load_settings(tmp_path / "pipelines" / "shop.toml")
        for kind, every_ms in (
            ("snapshot", settings.archive.snapshots_every_ms),
            ("restore_drill", settings.archive.drills_every_ms),
        ):
            shown = found.dags[f"sluice_{kind}_shop"].timetable
            assert shown.delta == timedelta(milliseconds=every_ms)
        for kind, every_ms in (
            ("verify", settings.verify.every_ms),
            ("quality", settings.quality.every_ms),
        ):
            assert not every_ms
            assert type(found.dags[f"sluice_{kind}_shop"].timetable).__name__ == "NullTimetable"


def test_a_scheduled_run_that_has_nothing_to_do_is_skipped_and_says_why(tmp_path):
    from airflow.sdk.exceptions import AirflowSkipException

    folder = shop_file(tmp_path / "pipelines")
    text = (folder / "shop.toml").read_text()
    (folder / "shop.toml").write_text(text.replace("file:///r", f"file://{tmp_path}/relay"))
    with parsed(tmp_path, folder) as found:
        for kind, task in (("snapshot", "plan"), ("verify", "plan"), ("quality", "look")):
            run = found.dags[f"sluice_{kind}_shop"].get_task(task).python_callable
            with pytest.raises(AirflowSkipException, match=r".+"):
                run(params={}, run_id="any", dag_run=SimpleNamespace(run_type="scheduled"))


def test_the_day_of_assets_ends_where_the_next_one_begins(tmp_path):
    from sluice.tidb import tso
    from sluice.tidb.moments import parse_moment

    with parsed(
        tmp_path, shop_file(tmp_path / "pipelines", '[airflow]\nassets = ["shop.orders"]\n')
    ) as found:
        dag = found.dags["sluice_assets_shop"]
        task = dag.get_task("archived")
        assert [asset.uri for asset in task.outlets] == ["sluice://shop/shop/orders"]
        task.render_template_fields({"partition_key": "2026-11-22"})
        end = parse_moment(task.moment)
        assert end + 1 == tso.from_datetime(datetime(2026, 11, 23, tzinfo=UTC))


@pytest.mark.parametrize(("settings", "fails"), [("", True), ('differences = "event"', False)])
def test_differences_fail_the_run_of_verify_unless_the_settings_want_an_event(
    tmp_path, settings, fails
):
    folder = shop_file(tmp_path / "pipelines", f"[airflow]\n{settings}\n")
    with parsed(tmp_path, folder) as found:
        task = found.dags["sluice_verify_shop"].get_task("compare")
        assert task.fail_on_differences is fails
        assert [asset.uri for asset in task.outlets] == ["sluice://shop/verified"]


@pytest.mark.parametrize("refusal", ["4f", ""])
def test_accepting_is_offered_only_where_a_batch_is_refused(tmp_path, monkeypatch, refusal):
    folder = shop_file(tmp_path / "pipelines", "[airflow]\ndecisions = true\n")
    with parsed(tmp_path, folder) as found:
        assert found.import_errors == {}
        ask = found.dags["sluice_decide_shop"].get_task("ask")
        offered = []
        monkeypatch.setattr(
            "airflow.providers.standard.operators.hitl.HITLOperator.execute",
            lambda self, context: offered.extend(self.options),
        )
        ti = SimpleNamespace(xcom_pull=lambda task_ids: {"refusal": refusal})
        type(ask).execute(ask, {"ti": ti})
        assert ("Accept the refused batch" in offered) == bool(refusal)
        assert "Wait" in offered


def test_a_decision_is_carried_out_with_the_persons_name_and_waiting_does_nothing(
    tmp_path, monkeypatch
):
    from airflow.sdk.exceptions import AirflowSkipException

    from sluice.etl import operate

    forms = []
    monkeypatch.setattr(operate, "dispatch", lambda settings, form: forms.append(form) or "done")
    folder = shop_file(tmp_path / "pipelines", "[airflow]\ndecisions = true\n")
    with parsed(tmp_path, folder) as found:
        act = found.dags["sluice_decide_shop"].get_task("act").python_callable

        def decide(option):
            fields = {"commit_ts": "5", "why": "a test"}
            return act(
                {"refusal": "4f"},
                {
                    "chosen_options": [option],
                    "params_input": fields,
                    "responded_by_user": {"id": "1", "name": "ann"},
                },
            )

        for option in ("Accept the refused batch", "Skip the transaction", "Skip the DDL"):
            assert decide(option) == "done"
        with pytest.raises(AirflowSkipException):
            decide("Wait")
    assert [(form.action, form.value) for form in forms] == [
        ("accept", "4f"),
        ("skip-txn", "5"),
        ("skip-ddl", "5"),
    ]
    assert {(form.by, form.why) for form in forms} == {("airflow ann", "a test")}


def test_without_assets_in_the_settings_there_is_no_dag_for_them(dag_bag):
    assert "sluice_assets" not in dag_bag.dags


def test_no_dag_has_a_cycle(dag_bag):
    for dag in dag_bag.dags.values():
        seen: set[str] = set()

        def walk(task, path, seen=seen):
            assert task.task_id not in path, f"{dag.dag_id}: cycle through {task.task_id}"
            if task.task_id in seen:
                return
            seen.add(task.task_id)
            for below in task.downstream_list:
                walk(below, path | {task.task_id})

        for root in dag.roots:
            walk(root, frozenset())
        assert seen == set(dag.task_ids)


def test_replicate_runs_continuously_one_run_at_a_time_with_land_and_apply_side_by_side(dag_bag):
    dag = dag_bag.dags["sluice_replicate"]
    assert dag.max_active_runs == 1
    assert type(dag.timetable).__name__ == "ContinuousTimetable"
    assert sorted(dag.task_ids) == ["apply", "land"]
    assert not dag.get_task("land").downstream_list
    assert not dag.get_task("apply").downstream_list
    assert dag.get_task("land").retries >= 100


def test_where_a_service_replicates_the_dag_watches_it(tmp_path):
    more = '[airflow]\nreplication = "service"\n'
    with parsed(tmp_path, shop_file(tmp_path / "pipelines", more)) as found:
        assert found.import_errors == {}
        dag = found.dags["sluice_replicate_shop"]
        assert dag.task_ids == ["watch"]
        assert dag.max_consecutive_failed_dag_runs == 1


def test_each_queue_of_the_service_has_a_task_of_its_own(tmp_path):
    more = '[airflow]\nqueue = "any"\nreplication = "service"\nservice-queues = ["east", "west"]\n'
    folder = shop_file(tmp_path / "pipelines", more)
    (folder / "search.toml").write_text(
        (folder / "shop.toml").read_text().partition("[airflow]")[0].replace("db1", "db2")
    )
    with parsed(tmp_path, folder) as found:
        assert found.import_errors == {}
        assert {it for it in found.dags if it.startswith("sluice_service")} == {
            "sluice_service_1_shop",
            "sluice_service_2_shop",
        }
        for number, queue in ((1, "east"), (2, "west")):
            (task,) = found.dags[f"sluice_service_{number}_shop"].tasks
            assert (task.queue, task.retries) == (queue, 1_000)
    with parsed(tmp_path, shop_file(folder, '[airflow]\nservice-queues = ["east"]\n')) as found:
        (said,) = found.import_errors.values()
        assert "service-queues" in said


@pytest.mark.slow
def test_a_task_of_replicate_that_was_started_again_ends_with_its_run(
    dag_bag, tmp_path, monkeypatch
):
    (tmp_path / "sluice.toml").write_text(
        '[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl ='
        f' "file://{tmp_path}/relay"\n[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    monkeypatch.setenv("SLUICE_CONFIG", str(tmp_path / "sluice.toml"))
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")  # so that nothing stays behind
    RelayLog.open(f"file://{tmp_path}/relay").change_control(
        lambda _: Control(land_paused=True, apply_paused=False)
    )
    monkeypatch.setattr("sluice.etl.tasks.airflow_run.MIN_TASK_S", 0.1)
    run = SimpleNamespace(start_date=datetime.now(UTC) - timedelta(days=1))
    params = {"run_seconds": 86_000, "mode": "as in sluice.toml", "until": None}
    landed = (
        dag_bag.dags["sluice_replicate"]
        .get_task("land")
        .python_callable(params=params, dag_run=run)
    )
    assert landed["windows"] == 0


def test_archive_makes_passes_then_compacts_then_removes_and_stops_for_people(dag_bag):
    dag = dag_bag.dags["sluice_archive"]
    assert dag.max_active_runs == 1 and dag.max_consecutive_failed_dag_runs == 1
    assert type(dag.timetable).__name__ == "ContinuousTimetable"
    ways = {name: sorted(dag.get_task(name).downstream_task_ids) for name in dag.task_ids}
    assert ways == {"archive": ["compact"], "compact": ["retain"], "retain": []}
    assert dag.get_task("archive").retries >= 100


def test_a_restarted_archive_task_ends_with_its_run_so_that_files_are_removed_in_time(
    dag_bag, monkeypatch
):
    found = []
    monkeypatch.setattr(
        "sluice.etl.tasks.archive.archive",
        lambda settings, seconds, got_on: found.append(seconds) or {},
    )
    monkeypatch.setattr(
        "sluice.etl.tasks.airflow_task.run_task",
        lambda pipeline, what, work: work(None, lambda _: None),
    )
    run = SimpleNamespace(start_date=datetime.now(UTC) - timedelta(seconds=600))
    dag_bag.dags["sluice_archive"].get_task("archive").python_callable(
        params={"run_seconds": 900}, dag_run=run
    )
    assert found == [pytest.approx(300, abs=20)]


def test_continuous_verification_that_was_started_again_or_tried_again_ends_with_its_run(
    dag_bag, tmp_path, monkeypatch
):
    (tmp_path / "sluice.toml").write_text(
        f'[upstream]\npd-urls = "p"\n[relay]\nurl = "file://{tmp_path}/relay"\n[downstream]\nhost ='
        ' "h"\n'
    )
    monkeypatch.setenv("SLUICE_CONFIG", str(tmp_path / "sluice.toml"))
    found = []

    def watch(settings, seconds):
        found.append(seconds)
        if len(found) == 1:
            raise ConnectionResetError("not yet")
        return {}

    monkeypatch.setattr("sluice.etl.verify.continuous_task.run_continuous_task", watch)
    run = SimpleNamespace(start_date=datetime.now(UTC) - timedelta(seconds=300))
    dag_bag.dags["sluice_verify_continuously"].get_task("watch").python_callable(dag_run=run)
    assert found == [pytest.approx(240, abs=20)] * 2 and found[0] > found[1]


def test_the_tasks_of_archive_have_nothing_to_do_while_nothing_is_landed_and_say_so(
    dag_bag, tmp_path, monkeypatch
):
    (tmp_path / "sluice.toml").write_text(
        '[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl ='
        f' "file://{tmp_path}/relay"\n[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    monkeypatch.setenv("SLUICE_CONFIG", str(tmp_path / "sluice.toml"))
    dag = dag_bag.dags["sluice_archive"]
    archived = dag.get_task("archive").python_callable(params={"run_seconds": 0.1})
    assert (archived["segments"], archived["hi"]) == (0, 0)
    assert dag.get_task("compact").python_callable()["segments"] == 0
    assert dag.get_task("retain").python_callable()["windows"] == 0


def test_every_parameter_has_a_default_that_is_valid_and_a_description(dag_bag):
    for dag in dag_bag.dags.values():
        for name in dag.params:
            assert dag.params.get_param(name).description, f"{dag.dag_id}.{name}"
            schema = dag.params.get_param(name).schema
            assert dag.params[name] not in ("", None) or "null" in schema["type"], (
                "Airflow's form asks for what may stay empty"
            )
        dag.params.validate()
    assert set(dag_bag.dags["sluice_replicate"].params) == {
        "run_seconds",
        "mode",
        "until",
        "until_time",
    }


def test_operate_runs_when_it_is_triggered_and_offers_every_action_of_the_command_line(dag_bag):
    from sluice.etl.operate import ACTIONS

    dag = dag_bag.dags["sluice_operate"]
    assert type(dag.timetable).__name__ == "NullTimetable"
    assert tuple(dag.params.get_param("action").schema["enum"]) == ACTIONS


@pytest.mark.slow
def test_the_task_of_operate_does_what_the_form_says_and_refuses_what_makes_no_sense(
    dag_bag, tmp_path, monkeypatch
):
    from sluice.airflow.agent_client import TaskFailedPermanently
    from sluice.relay import Control, RelayLog
    from sluice.relay.jobs import Jobs, Runner, WriteScope

    url = f"file://{tmp_path}/relay"
    (tmp_path / "sluice.toml").write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "{url}"\n[downstream]\nhost ='
        ' "127.0.0.1"\nport = 1\n'
    )
    monkeypatch.setenv("SLUICE_CONFIG", str(tmp_path / "sluice.toml"))
    act = dag_bag.dags["sluice_operate"].get_task("act").python_callable
    ts = 470614793860415502

    def run(action, value="", sql="", why=""):
        return act(
            params={
                "action": action,
                "value": value or None,
                "sql": sql or None,
                "why": why or None,
            },
            run_id="manual__1",
        )

    relay = RelayLog.open(url)
    run("pause", "land")
    run("run-until", "2026-11-21T12:00:00+00:00")
    assert relay.control() == Control(
        land_paused=True, apply_until_ts=(1795262400000 << 18) + (1 << 18) - 1
    )
    run("resume")
    assert relay.control() == Control()
    run("skip-txn", str(ts), why="broken")
    run("replace-ddl", str(ts + 1), "ALTER TABLE a ADD b int; SELECT ';'")
    assert [(d.commit_ts, d.action, d.sql, d.by, d.why) for d in relay.overrides.list()] == [
        (ts, "skip", (), "airflow manual__1", "broken"),
        (ts + 1, "replace", ("ALTER TABLE a ADD b int", "SELECT ';'"), "airflow manual__1", ""),
    ]
    run("remove-override", str(ts))
    assert len(relay.overrides.list()) == 1
    assert str(ts + 1) in run("status")
    assert run("show") == "[]"
    job = Jobs(relay.storage).create("backfill", {}, WriteScope("db", ("d.t",)), "ann")
    assert '"state": "planned"' in run("jobs")
    assert "no process runs it" in run("pause-job", job.id)
    with job.run(Runner("a test")):
        assert "does so after what is under way" in run("pause-job", job.id)
        assert job.entry().state == "pausing" and job.entry().by == "airflow manual__1"
        run("cancel-job", job.id)
        assert job.entry().state == "cancelling"
    with pytest.raises(TaskFailedPermanently, match="there is no job nothing"):
        run("cancel-job", "nothing")
    for action, value in (
        ("skip-txn", "soon"),
        ("pause", "everything"),
        ("run-until", ""),
        ("skip-ddl", "17"),
        ("dance", ""),
    ):
        with pytest.raises(TaskFailedPermanently):
            run(action, value)


def test_modes_are_those_of_the_settings(dag_bag):
    from sluice.etl.operate import MODE_AS_SET
    from sluice.etl.settings import MODES

    assert tuple(dag_bag.dags["sluice_replicate"].params.get_param("mode").schema["enum"]) == (
        MODE_AS_SET,
        *MODES,
    )


@pytest.mark.slow
def test_parsing_a_dag_file_imports_nothing_heavy_and_is_quick(tmp_path):
    script = (
        "import sys, time, runpy\n"
        "import airflow.sdk\n"
        "before = set(sys.modules)\n"
        "began = time.process_time()\n"
        "for name in sys.argv[1:]: runpy.run_path(name)\n"
        "took = time.process_time() - began\n"
        f"heavy = [m for m in {HEAVY!r} if m in set(sys.modules) - before]\n"
        "assert not heavy, heavy\n"
        "assert took < 5, took\n"
    )
    began = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", script, *map(str, sorted(DAGS.glob("*.py")))],
        env={"AIRFLOW_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr + f" after {time.monotonic() - began:.1f} s"


def test_bootstrap_plans_copies_side_by_side_and_finishes_when_it_is_triggered(dag_bag):
    dag = dag_bag.dags["sluice_bootstrap"]
    assert type(dag.timetable).__name__ == "NullTimetable" and dag.max_active_runs == 1
    assert {name: sorted(dag.get_task(name).downstream_task_ids) for name in dag.task_ids} == {
        "plan": ["approve", "prepare"],
        "approve": ["prepare"],
        "prepare": ["copy", "finish"],
        "copy": ["finish"],
        "finish": [],
    }
    assert dag.get_task("copy").is_mapped and dag.get_task("copy").retries == 5


def test_restore_plans_when_it_is_triggered_and_restores_what_a_person_has_approved(dag_bag):
    from sluice.etl.tasks.form_fields import restore_request

    dag = dag_bag.dags["sluice_restore"]
    assert type(dag.timetable).__name__ == "NullTimetable"
    ways = {name: sorted(dag.get_task(name).downstream_task_ids) for name in dag.task_ids}
    assert ways == {"plan": ["approve", "work"], "approve": ["work"], "work": []}
    values = dict(dag.params)
    assert values["approve"] and values["verify"] and not values["plan_only"]
    form = deepcopy(dag.params)
    form["tables"] = ["shop.*", ""]  # as Airflow's form sends a line and its end
    said = form.validate() | {
        "until": "before:470614793860415502",
        "replacing": ["a.b", " "],
        "verify": False,
    }
    request = restore_request(said)
    assert (request.until, request.tables, request.into) == (
        470614793860415501,
        ("shop.*",),
        "{schema}_restored",
    )
    assert (request.replacing, request.verify, request.target) == (("a.b",), False, {})


def test_the_form_of_restore_takes_a_folder_for_files_and_refuses_a_database_beside_it(dag_bag):
    from sluice.etl.restore import FilesRequest, RestoreError
    from sluice.etl.tasks.form_fields import files_request

    form = dag_bag.dags["sluice_restore"].params
    assert files_request(form.validate()) is None
    said = form.validate() | {
        "until": "470614793860415501",
        "tables": ["shop.*", ""],
        "folder": "/backup/shop",
    }
    wanted = FilesRequest(470614793860415501, ("shop.*",), Path("/backup/shop"))
    assert files_request(said) == wanted
    assert FilesRequest.from_json(wanted.to_json()) == wanted
    for beside in ({"into": "{schema}_x"}, {"connection": "spare"}, {"verify": False}):
        with pytest.raises(RestoreError, match="do not apply to a restore into files"):
            files_request(said | beside)


def test_what_the_form_of_bootstrap_says_is_what_the_command_says(dag_bag):
    from sluice.etl.copy import CsvFormat, DumplingOptions
    from sluice.etl.tasks.form_fields import bootstrap_request

    values = dict(dag_bag.dags["sluice_bootstrap"].params) | {
        "source": " s3://dumps/first ",
        "tables": ["shop.*"],
        "csv_separator": "\\t",
        "csv_delimiter": "",
        "csv_line_terminator": "\\r\\n",
        "csv_header": False,
        "escape_backslash": False,
    }
    wish = bootstrap_request(values, "ann")
    assert (wish.url, wish.globs, wish.into, wish.by) == (
        "s3://dumps/first",
        ("shop.*",),
        (),
        "ann",
    )
    assert wish.options == DumplingOptions(CsvFormat("\t", "", "\r\n", header=False), escapes=False)
    untouched = bootstrap_request(dict(dag_bag.dags["sluice_bootstrap"].params), "ann")
    assert (untouched.url, untouched.options) == ("tidb://", DumplingOptions())
