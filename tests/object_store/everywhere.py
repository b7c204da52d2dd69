"""Runs tests that were written for folders with an S3 server in the folders' place, and faults on the way to it.

    make test-stores
    .venv/bin/python -m pytest -p tests.object_store.everywhere -n0 tests/relay/test_relay_crash.py …

Whatever opens a relay log or an archive in a folder, in the tests' process or in one that they start, has it in the S3
server instead, under the folder's path: `LocalStorage` does what `ObjectStorage` does. A folder that is there already
when it is opened, such as a dump, stays what it is. ``SLUICE_TEST_FAULTS`` has the faults, by default `FAULTS`; their
generators begin at ``SLUICE_TEST_SEED``. At the end it is said how often each fault has happened.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import obstore
import pytest

from tests.etl.freezer import PATIENCE
from tests.object_store.moved import DIRECTLY, LISTS_LAG, VARIABLE, move, url_of
from tests.object_store.proxy import Fault
from tests.object_store.s3_server import BUCKET, S3Process, S3Server

FAULTS = "slow:0.02:0.05 busy:0.01 failed:0.01 failed_after:0.02 lost:0.02 reset:0.01 cut:0.01 flipped:0.01"
"""Lists that lag, as ``lag:0.5:1.0``, aren't among them: some tests themselves list what they have just written."""
IN_CHILDREN = [str(Path(__file__).with_name("in_children")), str(Path(__file__).parents[2])]
_CHECKED = ("/parts/", "/windows/")
"""Where a flipped bit is found by a checksum; elsewhere the connection's TLS is what finds it."""


def faults(text: str, seed: int) -> list[Fault]:
    """Faults from words such as ``slow:0.02:0.05``: a kind, which part of the requests, seconds."""
    found = []
    for number, word in enumerate(text.split()):
        kind, chance, seconds = [*word.split(":"), "0"][:3]
        paths = _CHECKED if kind == "flipped" else ("",)
        methods = {"lag": "LIST", "cut": "GET", "flipped": "GET"}.get(kind, "")
        found += [
            Fault(
                kind.replace("_", " "), methods, path, chance=float(chance), seed=seed + number, seconds=float(seconds)
            )
            for path in paths
        ]
    return found


def pytest_configure(config: pytest.Config) -> None:
    process = S3Process(Path(tempfile.mkdtemp(prefix="s3-everywhere-")))
    server, direct = S3Server(process), S3Server(process)
    os.environ |= server.environment
    os.environ[VARIABLE] = server.url("FOLDER")
    told = os.environ.get("SLUICE_TEST_FAULTS", FAULTS)
    os.environ[LISTS_LAG] = "yes" if "lag" in told else ""
    os.environ[DIRECTLY] = direct.url("FOLDER")
    os.environ.setdefault(PATIENCE, "10")
    _move_here()
    _move_in_children()
    server.inject(*faults(told, int(os.environ.get("SLUICE_TEST_SEED", "1"))))
    config._s3 = process, server, direct  # type: ignore[attr-defined]


def _move_here() -> None:
    """In this process; a test that copies a folder copies what is in the server, without faults."""
    from relay.storage import open_storage
    from relay.storage._local import LocalStorage

    move(LocalStorage)
    whole_folder = shutil.copytree

    def copied(source: Any, target: Any, *args: Any, **options: Any) -> Any:
        if Path(source).is_dir():
            return whole_folder(source, target, *args, **options)
        urls = [url_of(Path(one), os.environ[DIRECTLY]) for one in (source, target)]
        stores = [open_storage(url).store for url in urls]  # type: ignore[attr-defined]
        Path(target).mkdir(parents=True, exist_ok=True)
        for found in obstore.list(stores[0]).collect():
            obstore.put(stores[1], found["path"], obstore.get(stores[0], found["path"]).bytes())
        return target

    shutil.copytree = copied


def _move_in_children() -> None:
    """In each Python that a test starts, whatever environment it gets; multiprocessing starts one in its own way."""
    start = subprocess.Popen.__init__
    os.environ["PYTHONPATH"] = os.pathsep.join([*IN_CHILDREN, *filter(None, [os.environ.get("PYTHONPATH")])])

    def started(process: Any, *args: Any, **options: Any) -> None:
        env = dict(os.environ if options.get("env") is None else options["env"])
        paths = [*IN_CHILDREN, *filter(None, [env.get("PYTHONPATH")])]
        told = (VARIABLE, DIRECTLY, LISTS_LAG, PATIENCE)
        kept = {name: value for name, value in os.environ.items() if name in told or name.startswith("AWS_")}
        start(process, *args, **options | {"env": env | kept | {"PYTHONPATH": os.pathsep.join(paths)}})

    subprocess.Popen.__init__ = started  # type: ignore[assignment]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    _, server, _ = terminalreporter.config._s3
    happened = [f"{fault.kind} {fault.path} {fault.happened}".replace("  ", " ") for fault in server.proxy._faults]
    terminalreporter.write_line(f"requests to {BUCKET}: {dict(server.counted())}; faults: {', '.join(happened)}")


def pytest_unconfigure(config: pytest.Config) -> None:
    process, *servers = config._s3  # type: ignore[attr-defined]
    for server in servers:
        server.close()
    process.close()
    sys.stdout.flush()
