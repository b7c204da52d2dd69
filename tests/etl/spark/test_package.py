"""How Sluice comes to workers, and what is said of a worker that doesn't fit."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sluice.etl.settings import SettingsError, Spark
from sluice.etl.spark.errors import WorkerError
from sluice.etl.spark.job import TaskFrame
from sluice.etl.spark.remote_workers import WorkerRequirements
from sluice.etl.spark.shipping import build_zip, fingerprint
from sluice.etl.spark.version_check import VersionChecked, mismatches, versions
from sluice.etl.spark.worker_tuning import TEXTS

_IMPORTS_ALL = """
import sys, zipfile
python = [path for path in sys.path if "site-packages" in path or "lib/python" in path]
sys.path[:] = [sys.argv[1], *python]
from sluice.etl.spark import shipping
import sluice.etl.history.archive.worker, sluice.etl.history.as_of.worker
import sluice.etl.history.find.scan
import sluice.etl.copy.staged_loads, sluice.etl.landing.extract.worker
import sluice.etl.apply.prepare_windows
for name, module in sys.modules.items():
    if name.split(".")[0] == "sluice" and getattr(module, "__file__", None):
        file = module.__file__
        assert file.startswith(sys.argv[1]) and file.endswith(".pyc"), file
print(shipping.fingerprint())
"""


@pytest.mark.slow
def test_the_archive_is_all_that_workers_import_of_sluice_and_knows_its_version(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sluice.zip"
    path.write_bytes(build_zip())
    said = subprocess.run(
        [sys.executable, "-I", "-c", _IMPORTS_ALL, str(path)],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert said.stdout.strip() == fingerprint(), said.stderr


def _here(batches):
    return batches


def test_a_worker_with_other_versions_says_at_first_use_what_and_on_which_host() -> None:
    wanted = versions() | {
        "Python": "3.9",
        "pyspark": "4.2.0",
        "pyarrow": "1.0",
        "Sluice": "0123",
        "none": "1",
    }
    fitting = VersionChecked(wanted, VersionChecked.wrap(_here).function)
    with pytest.raises(WorkerError) as caught:
        list(fitting(iter(())))
    said = str(caught.value)
    assert f"the Spark worker on {socket.gethostname()} doesn't fit" in said
    for text in (
        "in place of 3.9",
        "in place of 4.2.0",
        "in place of 1.0",
        f"Sluice {fingerprint()} in",
        "no none",
    ):
        assert text in said


def test_a_worker_that_fits_does_its_work() -> None:
    assert list(VersionChecked.wrap(_here)(iter([1, 2]))) == [1, 2]


def test_minor_versions_of_what_is_not_shared_may_differ() -> None:
    here = {"pyarrow": "20.0.1", "zstandard": "0.25", "pyspark": "4.3.0", "obstore": ""}
    wanted = {"pyarrow": "20.1", "zstandard": "0.23", "pyspark": "4.3.0", "obstore": "0.12"}
    assert mismatches(here, wanted) == ["no obstore"]


@pytest.mark.parametrize("there", ["4.3.0", "4.3.1", "4.3.0+amzn.0", "4.3.0.dev1"])
def test_patches_and_vendors_builds_of_the_same_spark_fit(there: str) -> None:
    assert mismatches({"pyspark": there}, {"pyspark": "4.3.0"}) == []


@pytest.mark.parametrize("there", ["4.2.0", "4.30.0", "5.3.0", "4.2.3+amzn.0"])
def test_another_minor_version_of_spark_does_not_fit(there: str) -> None:
    assert mismatches({"pyspark": there}, {"pyspark": "4.3.0"}) == [
        f"pyspark {there} in place of 4.3.0"
    ]


@pytest.mark.parametrize(
    ("master", "remote", "here"),
    [
        ("local[*]", "sc://127.0.0.1:1", True),
        ("local[*]", "sc://spark:1", False),
        ("local-cluster[2,1,1024]", "sc://127.0.0.1:1", False),
        ("spark://one:7077", "sc://127.0.0.1:1", False),
        ("yarn", "sc://localhost:1", False),
        ("", "sc://127.0.0.1:1", False),
    ],
)
def test_workers_elsewhere_are_sent_sluice_and_get_no_folders(
    master: str, remote: str, here: bool
) -> None:
    needs = WorkerRequirements(Spark(remote), master)
    assert needs.sends_package is not here
    if here:
        needs.check_places(["file:///relay"])
    else:
        needs.check_places(["s3://bucket/relay"])
        with pytest.raises(
            SettingsError, match=r"/relay is a folder of this machine.*shared-files = true"
        ):
            needs.check_places(["s3://bucket/relay", "/relay"])
        WorkerRequirements(Spark(remote, shared_files=True), master).check_places(["file:///relay"])


def test_a_session_of_another_version_or_way_is_another_session(tmp_path: Path) -> None:
    environment = tmp_path / "env.tar.gz"
    environment.write_bytes(b"x")
    remote = "sc://spark:1"
    kinds = [
        Spark(remote),
        Spark(remote, package="never"),
        Spark(remote, environment=str(environment)),
    ]
    marks = {WorkerRequirements(kind, "yarn").mark for kind in kinds}
    assert len(marks) == 3
    assert WorkerRequirements(kinds[2], "yarn").confs == {
        "spark.sql.execution.pyspark.python": "environment/bin/python"
    }
    environment.unlink()
    with pytest.raises(SettingsError, match="there is no such file"):
        WorkerRequirements(kinds[2], "yarn").send(None)


def test_every_job_of_rows_asks_workers_elsewhere_first_whether_they_fit() -> None:
    elsewhere, here = (
        SimpleNamespace(sluice_workers_are_here=False),
        SimpleNamespace(sluice_workers_are_here=True),
    )
    assert isinstance(TaskFrame(elsewhere, _here, TEXTS, TEXTS)._function, VersionChecked)
    assert TaskFrame(here, _here, TEXTS, TEXTS)._function is _here
