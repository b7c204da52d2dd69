"""The wheel, installed into an empty venv, runs from an empty folder and opens nothing of the
clone.
"""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import tomllib
import urllib.request
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.devstack.processes import tagged
from sluice.devstack.recording import Recording
from sluice.devstack.stack import Stack

ROOT = Path(__file__).resolve().parents[1]
RECORDING = "tests/recordings/shop"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
GUARD = """
import os, sys

def _refuse(event, arguments):
    if event != "open" or not isinstance(arguments[0], (str, bytes)):
        return
    path = os.path.abspath(os.fsdecode(arguments[0]))
    if path.startswith({root!r} + "/") and not path.startswith({allowed!r} + "/"):
        with open({log!r}, "a") as file:
            file.write(path + "\\n")
        raise ImportError("the wheel opens a file of the clone: " + path)

sys.addaudithook(_refuse)
"""


@dataclass
class Installed:
    """A venv with the wheel in it.

    `opened` is written when one of its processes opens a file of the clone.
    """

    python: Path
    home: Path
    folder: Path
    opened: Path

    def start(self, *words, **options):
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PYTHON", "SLUICE", "AIRFLOW"))
        }
        env["XDG_STATE_HOME"] = str(self.home.parent)
        return subprocess.Popen(
            [str(self.python.with_name("sluice")), *map(str, words)], cwd=self.folder, env=env,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options,
        )  # fmt: skip

    def run(self, *words, timeout=600):
        child = self.start(*words)
        try:
            output, _ = child.communicate(timeout=timeout)
        finally:
            child.kill()
        return child.returncode, output


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, since the build writes the protobuf modules, which other tests import
    meanwhile.
    """
    folder = tmp_path_factory.mktemp("wheel")
    unwanted = shutil.ignore_patterns(
        ".*", "tests", "recordings", "docs", "_pb", "__pycache__", "site", "dist"
    )
    shutil.copytree(ROOT, folder / "source", ignore=unwanted, symlinks=True)
    shutil.copytree(ROOT / RECORDING, folder / "source" / RECORDING)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(
        command, cwd=folder / "source", capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(folder / "source")
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The wheel in a venv of its own, which sees the locked dependencies, but not the clone."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    uv = Path(sys.prefix) / "uv" / "bin" / "uv"
    command = [
        str(uv),
        "pip",
        "install",
        "--offline",
        "--no-deps",
        "--python",
        str(python),
        str(wheel),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
    # A path in a .pth file is searched, but its own .pth files aren't read: the editable install
    # stays outside.
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    opened = folder / "opened"
    (packages / "guard.pth").write_text("import _guard\n")
    (packages / "_guard.py").write_text(
        GUARD.format(root=str(ROOT), allowed=sys.prefix, log=str(opened))
    )
    (folder / "empty").mkdir()
    peek = subprocess.run(
        [str(python), "-c", f"open({str(ROOT / 'LICENSE')!r})"], capture_output=True, text=True
    )
    assert "opens a file of the clone" in peek.stderr
    opened.unlink()
    yield Installed(python, folder / "sluice", folder / "empty", opened)
    Stack(folder / "sluice").down()
    assert not opened.exists(), opened.read_text()
    assert list((folder / "empty").iterdir()) == []


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings") / "orphans"
    shutil.copytree(
        ROOT / "tests" / "recordings" / "orphans",
        folder,
        ignore=shutil.ignore_patterns("pump-data-dir*"),
    )
    return folder


@pytest.mark.slow
def test_the_wheel_says_its_version_and_licence_and_holds_code_dags_and_one_recording_only(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        metadata = email.message_from_bytes(file.read(f"sluice-{VERSION}.dist-info/METADATA"))
        licence = file.read(f"sluice-{VERSION}.dist-info/licenses/LICENSE")
    assert metadata["Version"] == VERSION
    assert metadata["License-Expression"] == "Apache-2.0"
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert {
        "sluice/dags/replicate.py",
        "sluice/dags/operate.py",
        "sluice/devstack/airflow.cfg",
    } <= set(names)
    assert "sluice/tidb/_pb/binlog_pb2.py" in names
    played = {name for name in names if name.startswith("sluice/devstack/recordings/shop/")}
    assert {
        f"sluice/devstack/recordings/shop/{name}" for name in ("recording.json", "binlogs.bin.gz")
    } <= played
    kinds = {Path(name).suffix for name in names if ".dist-info" not in name and name not in played}
    assert kinds == {".py", ".pyi", ".proto", ".cfg", ".css", ".js", ".svg", ".txt"}
    assert {"sluice/plugins/sluice_plugin.py", "sluice/plugins/static/shell.js"} <= set(names)
    assert not [name for name in names if name.startswith(("tests", "docs"))]
    assert [name for name in names if "recordings" in name and name not in played] == []
    assert not [name for name in played if "pump-data-dir" in name or "drainer" in name]


def test_the_wheel_puts_one_name_beside_peoples_own_packages(wheel):
    with zipfile.ZipFile(wheel) as file:
        tops = {name.split("/", 1)[0] for name in file.namelist()} - {f"sluice-{VERSION}.dist-info"}
    assert tops == {"sluice"}


def test_the_wheel_holds_the_versions_of_the_lock_file_as_constraints(wheel):
    with zipfile.ZipFile(wheel) as file:
        held = file.read("sluice/devstack/constraints.txt").decode()
    uv = Path(sys.prefix) / "uv" / "bin" / "uv"
    command = [
        str(uv),
        "export",
        "--frozen",
        "--offline",
        "--quiet",
        "--no-default-groups",
        "--no-emit-project",
    ]
    command += ["--all-extras", "--no-hashes", "--no-annotate", "--no-header"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    wanted = {line.partition(" ;")[0].strip() for line in done.stdout.splitlines()}
    assert len(wanted) > 100
    assert wanted <= {line.partition(" ;")[0] for line in held.splitlines()}


@pytest.mark.slow
def test_the_clone_the_wheel_and_the_project_file_say_the_same_version(installed):
    clone = subprocess.run(
        [sys.executable, "-m", "sluice.cli", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert clone.stdout == f"sluice, version {VERSION}\n"
    assert installed.run("--version") == (0, clone.stdout)
    assert installed.run("pump", "-V")[1].startswith(f"sluice pump {VERSION},")


@pytest.mark.slow
def test_every_module_of_the_wheel_can_be_imported_without_the_clone(installed, wheel):
    with zipfile.ZipFile(wheel) as file:
        modules = [
            name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            for name in file.namelist()
            if name.endswith(".py") and "/__main__" not in name
        ]
    told = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    module = importlib.import_module(name)\n"
        "    assert module.__file__.startswith(sys.prefix), module.__file__\n"
    )
    done = subprocess.run(
        [str(installed.python), "-c", told, *modules],
        cwd=installed.folder,
        capture_output=True,
        text=True,
        timeout=600,
        env={"PATH": os.environ["PATH"], "AIRFLOW_HOME": str(installed.home.parent / "airflow")},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_recording_that_is_played_by_default_is_in_the_package(installed):
    told = (
        "from sluice.devstack.repository import recording_folder;"
        " print(recording_folder('tests/recordings/shop'))"
    )
    done = subprocess.run(
        [str(installed.python), "-c", told],
        cwd=installed.folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    folder = Path(done.stdout.strip())
    assert folder.is_relative_to(installed.python.parents[1]), done.stderr
    assert {label.name for label in Recording(folder).labels} >= {"c_mid", "e_end"}
    assert sum(1 for _ in Recording(folder).records()) == sum(
        1 for _ in Recording(ROOT / RECORDING).records()
    )


@pytest.mark.slow
def test_versions_other_than_the_tested_ones_are_named(installed):
    constraints = next(
        (installed.python.parents[1] / "lib").glob(
            "python*/site-packages/sluice/devstack/constraints.txt"
        )
    )
    whole = constraints.read_text()
    assert "other versions than" not in installed.run("programs")[1]
    constraints.write_text(re.sub(r"^pymysql==.*$", "pymysql==0.0.1", whole, flags=re.M))
    try:
        _, output = installed.run("programs")
    finally:
        constraints.write_text(whole)
    assert re.search(
        r"1 Python packages .* other versions than .*\n  pymysql [\d.]+, tested with 0\.0\.1$",
        output,
        re.M,
    )


def test_airflow_is_told_where_the_dags_are_beside_a_folder_of_ones_own(installed):
    code, folder = installed.run("dags")
    assert code == 0
    assert Path(folder.strip()).is_relative_to(installed.python.parents[1])
    own, sluice = json.loads(installed.run("dags", "--bundles")[1])
    assert own["kwargs"] == {}
    assert sluice["kwargs"] == {"path": folder.strip()}


@pytest.mark.slow
def test_what_needs_a_recording_of_the_repository_says_so(installed):
    for words in (("bench", "apply"), ("bench", "land")):
        code, output = installed.run(*words)
        assert code == 1, output
        assert "not in the installed package" in output
        assert "Traceback" not in output


@pytest.mark.slow
@pytest.mark.e2e
def test_a_pump_runs_from_the_wheel(installed, recording):
    code, output = installed.run("up", "--recording", recording, "etcd", "cluster", timeout=600)
    assert code == 0, output
    ports = Stack(installed.home).site().ports
    config = installed.home / "pump.toml"
    config.write_text(
        f'addr = "127.0.0.1:{ports["pump-1"]}"\npd-urls = "http://127.0.0.1:{ports["cluster"]}"\n'
        f'data-dir = "{installed.home}/pump"\nnode-id = "from-the-wheel"\n'
    )
    child = installed.start("pump", "--config", config)
    try:
        assert state_of(child, ports["pump-1"], "from-the-wheel") == "online"
        child.send_signal(signal.SIGTERM)
        output, _ = child.communicate(timeout=600)
        assert child.returncode == 0, output
    finally:
        child.kill()
        child.wait()
        assert installed.run("down")[0] == 0


def state_of(child, port, node):
    """The state in the registry, once the pump answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while child.poll() is None:
        try:
            with opener.open(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
                state = json.load(answer)["status"].get(node, {}).get("state")
        except OSError:
            state = None
        if state == "online":
            return state
        time.sleep(0.1)
    raise AssertionError(child.stdout.read())


@pytest.mark.beyond_ci
@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(1200)
def test_both_tasks_run_from_the_wheel_in_airflow_and_what_they_apply_is_equal(
    installed, recording
):
    code, output = installed.run(
        "run", "--recording", recording, "--speed", "max", "--no-bootstrap", timeout=1150
    )
    assert code == 0, output
    assert re.search(r"^differences +0$", output, re.M), output
    applied = re.search(r"^transactions +([\d,]+)$", output, re.M)
    assert applied and int(applied[1].replace(",", "")) > 0, output
    assert tagged(installed.home) == []
