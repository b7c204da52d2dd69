"""The TiUP package of a pump runs where there is a Python and nothing else, with the flags that
TiUP gives a pump.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from importlib import metadata
from pathlib import Path

import pytest

from deploy.tiup.tarball import bundle, name_of_tarball, pack
from sluice.devstack.stack import Stack

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """A deploy folder as TiUP makes it: the package unpacked in bin/, the settings in conf/."""
    folder = tmp_path_factory.mktemp("tiup")
    bundle(folder / "made")
    pack(folder / "made", folder / name_of_tarball(), level=0)
    deploy = folder / "deploy"
    for name in ("bin", "conf", "log"):
        (deploy / name).mkdir(parents=True)
    subprocess.run(
        ["tar", "-zxf", str(folder / name_of_tarball()), "-C", str(deploy / "bin")], check=True
    )
    shutil.rmtree(folder / "made")
    (folder / name_of_tarball()).unlink()
    shutil.copy(deploy / "bin" / "pump.toml.example", deploy / "conf" / "pump.toml")
    yield deploy
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def only_python(tmp_path_factory):
    """The environment of a machine with a Python and no packages."""
    programs = tmp_path_factory.mktemp("programs")
    version = "{}.{}".format(*sys.version_info[:2])
    base = Path(sys.base_prefix) / "bin" / f"python{version}"
    (programs / "python3").symlink_to(base.resolve())
    for name in ("cat", "dirname", "mkdir", "readlink"):
        (programs / name).symlink_to(shutil.which(name))
    return {"PATH": str(programs)}


@pytest.mark.slow
def test_the_package_says_its_version(deployed, only_python):
    done = subprocess.run(
        [deployed / "bin" / "pump", "-V"],
        env=only_python,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.startswith(f"sluice pump {metadata.version('sluice')}, Python "), done.stderr


@pytest.mark.slow
def test_without_the_python_that_it_was_made_for_it_says_which_one_that_is(
    deployed, only_python, tmp_path
):
    for name in ("cat", "dirname", "readlink"):
        (tmp_path / name).symlink_to(shutil.which(name))
    (tmp_path / "python3").write_text("#!/bin/sh\necho 2.7\n")
    (tmp_path / "python3").chmod(0o755)
    done = subprocess.run(
        [deployed / "bin" / "pump", "-V"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "no Python {}.{} on the PATH".format(*sys.version_info[:2]) in done.stderr
    assert "SLUICE_PYTHON" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pump_of_the_package_serves_with_the_flags_of_tiup_and_leaves_as_paused(
    deployed, only_python, tmp_path
):
    stack = Stack(tmp_path / "home")
    try:
        stack.up(("etcd", "cluster"), live=True)
        ports = stack.site().ports
        address = f"127.0.0.1:{ports['pump-1']}"
        flags = (
            "-node-id=from-tiup", f"-addr=0.0.0.0:{ports['pump-1']}", f"-advertise-addr={address}",
            f"-pd-urls=http://127.0.0.1:{ports['cluster']}", f"-data-dir={tmp_path / 'data'}",
            "-log-file=log/pump.log", "-config=conf/pump.toml",
        )  # fmt: skip
        with open(deployed / "log" / "pump_stderr.log", "wb") as errors:
            child = subprocess.Popen(
                ["bin/pump", *flags], cwd=deployed, env=only_python, stderr=errors
            )
        try:
            assert state_of(child, address, deployed) == "online"
            loaded = Path(f"/proc/{child.pid}/maps").read_text()
            assert str(deployed / "bin" / "sluice-pump") in loaded
            assert str(ROOT) not in loaded and sys.prefix not in loaded
            child.send_signal(signal.SIGTERM)
            assert child.wait(120) == 0
        finally:
            child.kill()
            child.wait()
        assert "from-tiup has left, paused" in (deployed / "log" / "pump.log").read_text()
    finally:
        stack.down()


def state_of(child, address, deployed):
    """The state in the registry, once the pump answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while child.poll() is None:
        try:
            with opener.open(f"http://{address}/status", timeout=30) as answer:
                state = json.load(answer)["status"].get("from-tiup", {}).get("state")
        except OSError:
            state = None
        if state == "online":
            return state
        time.sleep(0.1)
    raise AssertionError("".join(path.read_text() for path in (deployed / "log").iterdir()))


@pytest.mark.slow
def test_what_starts_it_without_tiup_gives_the_same_flags(deployed, only_python, tmp_path):
    shutil.copytree(
        deployed / "bin",
        tmp_path / "bin",
        ignore=lambda folder, names: {"sluice-pump", "pump"} & set(names),
    )
    (tmp_path / "bin" / "pump").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "bin" / "pump").chmod(0o755)
    env = only_python | {"ADVERTISE": "10.0.0.5:8250", "PD": "http://pd-1:2379"}
    done = subprocess.run(
        [tmp_path / "bin" / "run_pump.sh"], env=env, capture_output=True, text=True, timeout=60
    )
    words = done.stdout.split()
    assert dict(zip(words[::2], words[1::2])) == {
        "-addr": "0.0.0.0:8250", "-advertise-addr": "10.0.0.5:8250", "-pd-urls": "http://pd-1:2379",
        "-data-dir": "data", "-log-file": "log/pump.log", "-config": "conf/pump.toml",
    }, done.stderr  # fmt: skip
