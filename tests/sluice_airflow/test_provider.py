"""The thin provider works in an Airflow that has nothing of the pipeline's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sluice_airflow.conftest import ShopPipeline, shop_pipeline
from tests.sluice_airflow.counting_kind import program
from tests.sluice_airflow.documented_dags import documented_dags

ROOT = Path(__file__).resolve().parents[2]
NOT_AIRFLOWS = (
    *("sluice", "editable", "cattr", "confluent_kafka", "great_expectations", "grpc", "numpy"),
    *("obstore", "pandas", "plyvel", "pyarrow", "pymysql", "pyspark", "zstandard"),
)
"""What the pipeline's environment has, and an Airflow hasn't."""
PARSE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
found = {}
for folder in sys.argv[1:]:
    bag = DagBag(folder)
    found |= {"errors": {**found.get("errors", {}), **bag.import_errors}}
    found.setdefault("dags", []).extend(sorted(bag.dags))
print("result", json.dumps(found))
"""
WAIT = """
import asyncio, json
from airflow.sdk.exceptions import TaskDeferred
from sluice.airflow import SluiceReached
sensor = SluiceReached(task_id="replica", pipeline="shop", moment="2026-11-22T00:00:00Z")
at_once = sensor.execute({}) is None
later = SluiceReached(task_id="replica", pipeline="shop", moment="2026-11-22T00:00:01Z")
try:
    later.execute({})
    deferred = False
except TaskDeferred as deferral:
    deferred = deferral.trigger.serialize()[0]
print("result", json.dumps([at_once, deferred]))
"""
WORK = """
import json
from types import SimpleNamespace
from sluice.airflow import SluiceJobOperator
ti = SimpleNamespace(run_id="manual__1", dag_id="report", xcom_push=lambda *a, **k: None)
form = {"tables": ["3"]}
work = SluiceJobOperator(task_id="work", kind="count", pipeline="shop", form=form)
print("result", json.dumps(work.execute({"ti": ti})))
"""
CONNECTION = """
import json
from airflow.providers_manager import ProvidersManager
hook = ProvidersManager().hooks["sluice"]
print("result", json.dumps([hook.hook_name, hook.connection_type, *
    __import__("sluice.airflow.hook").airflow.hook.SluiceHook("shop").test_connection()]))
"""
PAGES = """
import json, sys, time
from importlib.metadata import entry_points
from airflow.api_fastapi.core_api import security
from fastapi.testclient import TestClient
from sluice.plugins import auth

class Anybody:
    def get_name(self):
        return "ann"

    def __getattr__(self, name):
        return lambda **asked: True

(entry,) = [each for each in entry_points(group="airflow.plugins") if each.name == "sluice"]
(mounted,) = entry.load()().fastapi_apps
auth.get_auth_manager = security.get_auth_manager = Anybody
security.DagModel.get_team_name = lambda dag_id: None
mounted["app"].dependency_overrides[security.get_user] = Anybody
client = TestClient(mounted["app"])
jobs = client.get("/api/jobs?pipeline=shop")
while jobs.status_code in (202, 503):
    time.sleep(0.2)
    jobs = client.get("/api/jobs?pipeline=shop")
found = [client.get(path).status_code for path in ("/static/shell.js", "/overview")]
print("result", json.dumps([*found, jobs.json(), "sluice.pages.app" in sys.modules]))
"""


@dataclass
class ThinAirflow:
    """A venv with Airflow and the provider, and the pipeline `shop` beside it."""

    python: Path
    folder: Path
    shop: ShopPipeline

    def run(self, script, *arguments):
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PYTHON", "SLUICE", "AIRFLOW"))
        }
        env |= {
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW_CONN_SHOP": "sluice:///shop",
            "SLUICE_PIPELINES": str(self.shop.pipelines),
        }
        done = subprocess.run(
            [str(self.python), "-c", script, *map(str, arguments)],
            cwd=self.folder, env=env, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        found = [line for line in done.stdout.splitlines() if line.startswith("result ")]
        assert done.returncode == 0 and found, done.stdout + done.stderr
        return json.loads(found[-1].removeprefix("result "))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("provider")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT / "providers" / "airflow", capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def thin(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("thin")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    for path in Path(sysconfig.get_path("purelib")).iterdir():  # the rest is Airflow's
        if not path.name.lstrip("_").startswith(NOT_AIRFLOWS):
            (packages / path.name).symlink_to(path)
    more = (
        f'[airflow]\nassets = ["shop.orders"]\ndecisions = true\npython = "{program(folder)}"\n'
        'replication = "service"\nservice-queues = ["a", "b"]\n'
        'notify = "builtins.print"\ndigest = "07:00"\n'
    )
    shop = shop_pipeline(folder / "shop", more=more)
    shop.move_checkpoint("2026-11-22T00:00:00Z")
    return ThinAirflow(python, folder, shop)


def test_the_wheel_is_small_and_needs_nothing_but_airflow(wheel):
    assert wheel.stat().st_size < 5_000_000
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        text = archive.read(path).decode()
    needs = [line for line in text.splitlines() if line.startswith("Requires-Dist: ")]
    assert all(line.startswith("Requires-Dist: apache-airflow") for line in needs) and needs


@pytest.mark.slow
def test_all_dags_of_sluice_and_of_the_documents_are_parsed(thin):
    (own := thin.folder / "documented").mkdir()
    for dag_id, text in documented_dags().items():
        (own / f"{dag_id}.py").write_text(text)
    (bundle,) = thin.folder.glob("venv/lib/python*/site-packages/sluice/dags")
    found = thin.run(PARSE, bundle, own)
    assert found["errors"] == {}
    files = {path.stem for path in bundle.glob("*.py")} - {"pipelines", "service"}
    files |= {"service_1", "service_2"}
    wanted = {f"sluice_{kind}_shop" for kind in files} | set(documented_dags())
    assert set(found["dags"]) == wanted


@pytest.mark.slow
def test_a_sensor_waits_for_the_pipeline_of_the_other_environment(thin):
    assert thin.run(WAIT) == [True, "sluice.airflow.waiting.SluiceReachedTrigger"]


@pytest.mark.slow
def test_an_operator_runs_its_job_in_the_other_environment(thin):
    assert thin.run(WORK) == {"steps": 3}


@pytest.mark.slow
def test_airflow_knows_the_connection_type_and_its_button_asks_the_pipeline(thin):
    assert thin.run(CONNECTION) == [
        "Sluice",
        "sluice",
        True,
        "The downstream is complete through 2026-11-22 00:00:00.000 UTC.",
    ]


@pytest.mark.slow
def test_the_pages_are_there_and_their_json_comes_from_the_other_environment(thin):
    script, page, found, is_here = thin.run(PAGES)
    assert (script, page, set(found), is_here) == (200, 200, {"jobs", "more", "actions"}, False)


def test_both_distributions_describe_the_same_provider_and_have_the_same_version():
    import tomllib

    thin, whole = (
        tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for folder in (ROOT / "providers" / "airflow", ROOT)
    )
    assert thin["version"] == whole["version"]
    assert thin["entry-points"] == whole["entry-points"]
