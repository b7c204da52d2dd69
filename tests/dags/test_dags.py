"""Every DAG file imports quickly, without errors, and does no work while it is parsed."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

DAGS = Path(__file__).resolve().parents[2] / "dags"
HEAVY = ("pyspark", "pyarrow", "pandas", "grpc", "pymysql", "great_expectations")


@pytest.fixture(scope="module")
def dag_bag(tmp_path_factory):
    home = tmp_path_factory.mktemp("airflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_HOME", str(home))
        patch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
        patch.setenv("AIRFLOW__CORE__UNIT_TEST_MODE", "False")
        patch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{home}/airflow.db")
        from airflow.dag_processing.dagbag import DagBag

        yield DagBag(dag_folder=str(DAGS))


def test_all_dag_files_import(dag_bag):
    assert dag_bag.import_errors == {}
    assert "replicate" in dag_bag.dags


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
    dag = dag_bag.dags["replicate"]
    assert dag.max_active_runs == 1
    assert type(dag.timetable).__name__ == "ContinuousTimetable"
    assert sorted(dag.task_ids) == ["apply", "land"]
    assert not dag.get_task("land").downstream_list
    assert not dag.get_task("apply").downstream_list
    assert dag.get_task("land").retries >= 100


def test_parsing_a_dag_file_imports_nothing_heavy_and_is_quick(tmp_path):
    script = (
        "import sys, time, runpy\n"
        "import airflow.sdk\n"
        "before = set(sys.modules)\n"
        "began = time.monotonic()\n"
        "for name in sys.argv[1:]: runpy.run_path(name)\n"
        "took = time.monotonic() - began\n"
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
