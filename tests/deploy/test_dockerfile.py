"""Dockerfile: every image is pinned, small, not run by root, and holds what is started in it."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.deploy.compose_file import ROOT, defaults, services
from tests.deploy.docker_file import TARGETS, stages

STAGES = stages()
targets = pytest.mark.parametrize("name", TARGETS)


def sent_to_the_build(path: str) -> bool:
    """Whether .dockerignore lets a path of the clone into a build.

    The last line that fits decides.
    """
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        if (
            pattern == "*"
            or path == pattern
            or path.startswith(f"{pattern}/")
            or fnmatch.fnmatch(path, pattern)
        ):
            sent = line.startswith("!")
    return sent


def test_hadolint_has_nothing_to_say_about_it():
    program = Path(sys.prefix) / "bin" / "hadolint"
    done = subprocess.run(
        [program, ROOT / "Dockerfile"], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    wrong = subprocess.run(
        [program, "-"], input="FROM python\n", capture_output=True, text=True, timeout=120
    )
    assert "DL3006" in wrong.stdout


def test_every_target_is_what_a_service_is_built_from():
    built = {one["build"]["target"] for one in services(defaults()).values() if "build" in one}
    assert built == set(TARGETS) <= set(STAGES)


def test_what_is_copied_is_there_and_sent_and_nothing_else_is():
    for stage in STAGES.values():
        for copied in stage.all("COPY"):
            if copied.startswith("--from="):
                assert copied.split()[0].removeprefix("--from=") in STAGES, copied
                continue
            for source in copied.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert sent_to_the_build(source), source
    for secret in (
        "deploy/secrets/store_secret_key",
        ".git/config",
        ".env",
        ".sluice/sluice.toml",
        "tests/schedule.py",
    ):
        assert not sent_to_the_build(secret), secret


def test_the_wheel_is_built_from_all_its_packages():
    text = (ROOT / "pyproject.toml").read_text()
    packages = re.search(r"wheel\]\npackages = \[([^\]]+)\]", text)
    assert packages
    copied = {source for line in STAGES["build-wheel"].all("COPY") for source in line.split()[:-1]}
    assert set(re.findall(r'"(\w+)"', packages[1])) <= copied


@targets
def test_an_image_is_pinned_and_runs_without_root_and_is_asked_for_its_health(name):
    stage = STAGES[name]
    assert re.fullmatch(r"python:3\.12\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", stage.base)
    assert stage.last("USER") == "10001:10001"
    assert stage.command("ENTRYPOINT") == ["python", "-m", "deploy.start.secret_files"]
    assert stage.command("HEALTHCHECK")[:3] == ["python", "-m", "deploy.start.healthy"]
    assert stage.command("CMD")


def test_uv_is_the_one_that_bin_setup_installs():
    version = re.search(r"^UV_VERSION=(\S+)$", (ROOT / "bin" / "setup").read_text(), re.M)
    assert version
    assert any(f"uv=={version[1]}" in line for line in STAGES["build"].all("RUN"))


def test_a_pump_needs_no_more_than_the_packages_of_its_image():
    listed = (ROOT / "deploy" / "pump-packages.txt").read_text().splitlines()
    wanted = {line for line in listed if line and not line.startswith("#")}
    asked = (
        "import pkgutil, importlib, sys, deploy.start.secret_files, deploy.start.healthy,"
        " sluice.pump_service as pump\n"
        "for one in pkgutil.walk_packages(pump.__path__, pump.__name__ + '.'):\n"
        "    if not one.name.endswith('__main__'):"
        " importlib.import_module(one.name)\nprint(*{name.partition('.')[0] for name in"
        " sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    brought = {"sluice"} | wanted
    for name in wanted:
        needed = [
            re.split(r"[^\w.-]", one)[0]
            for one in metadata.requires(name) or []
            if "extra ==" not in one
        ]
        brought |= {one.lower().replace("_", "-") for one in needed}
    owners = metadata.packages_distributions()
    # grpc looks whether they are there
    for module in set(done.stdout.split()) - {"_distutils_hack", "grpc_tools"}:
        names = {name.lower().replace("_", "-") for name in owners.get(module, [])}
        assert not names or names & brought, f"{module} of {names}"
    dependencies = (
        (ROOT / "pyproject.toml").read_text().split("dependencies = [")[1].split("]\n")[0]
    )
    assert wanted <= set(re.findall(r'"([a-z0-9-]+)', dependencies))


def test_every_package_is_checked_by_its_hash():
    assert all("hashes" not in line for stage in STAGES.values() for line in stage.all("RUN"))
