"""Runs tests that were written for folders with an S3 server in the folders' place, and faults on
the way to it.

    make test-stores
    .venv/bin/python -m pytest -p tests.object_store.everywhere -n0 \\
        tests/relay/test_relay_crash.py …
    .venv/bin/python -m tests.object_store.everywhere tests.judge --minutes 10

Whatever opens a relay log or an archive in a folder, in the tests' process or in one that they
start, has it in the S3 server instead, under the folder's path: `LocalStorage` does what
`ObjectStorage` does. A folder that is there already when it is opened, such as a dump, stays what
it is. ``SLUICE_TEST_FAULTS`` has the faults, by default `FAULTS`; their generators begin at
``SLUICE_TEST_SEED``. At the end it is said how often each fault has happened.
"""

from __future__ import annotations

import os
import runpy
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

FAULTS = (
    "slow:0.02:0.05 busy:0.01 failed:0.01 failed_after:0.02 lost:0.02 reset:0.01 cut:0.01"
    " flipped:0.01"
)
"""Lists that lag, as ``lag:0.5:1.0``, aren't among them: tests are slow with them. They lag for
processes that a test starts; the test itself lists what it has just written.
"""
IN_CHILDREN = [str(Path(__file__).with_name("in_children")), str(Path(__file__).parents[2])]
_COPYTREE, _RMTREE = shutil.copytree, shutil.rmtree
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
                kind.replace("_", " "),
                methods,
                path,
                chance=float(chance),
                seed=seed + number,
                seconds=float(seconds),
            )
            for path in paths
        ]
    return found


class Everywhere:
    """The server in the place of folders, for this process and its children, until `close`."""

    def __init__(self) -> None:
        self._process = S3Process(Path(tempfile.mkdtemp(prefix="s3-everywhere-")))
        self._server, self._direct, self._childrens = (S3Server(self._process) for _ in range(3))
        for one in (self._server, self._direct):
            one.proxy.listed = self._childrens.proxy.listed
        os.environ |= self._server.environment
        os.environ[VARIABLE] = self._server.url("FOLDER")
        told = os.environ.get("SLUICE_TEST_FAULTS", FAULTS)
        os.environ[LISTS_LAG] = "yes" if "lag" in told else ""
        os.environ[DIRECTLY] = self._direct.url("FOLDER")
        os.environ.setdefault(PATIENCE, "10")
        _move_here()
        _move_in_children(self._childrens.url("FOLDER"))
        self._faults = faults(told, int(os.environ.get("SLUICE_TEST_SEED", "1")))
        self._childrens.inject(*self._faults)
        self._server.inject(*(fault for fault in self._faults if fault.kind != "lag"))

    @property
    def happened(self) -> str:
        """What was asked of the server since it was last said, and how often each fault has
        happened.
        """
        found = [
            f"{fault.kind} {fault.path} {fault.happened}".replace("  ", " ")
            for fault in self._faults
        ]
        asked = self._server.counted() + self._childrens.counted()
        return f"requests to {BUCKET}: {dict(asked)}; faults: {', '.join(found)}"

    def close(self) -> None:
        """From now on a folder that is copied or removed is the folder alone."""
        shutil.copytree, shutil.rmtree = _COPYTREE, _RMTREE
        del os.environ[DIRECTLY]
        for server in (self._server, self._direct, self._childrens):
            server.close()
        self._process.close()


def pytest_configure(config: pytest.Config) -> None:
    config._everywhere = Everywhere()  # type: ignore[attr-defined]


def _move_here() -> None:
    """In this process.

    A test that copies or removes a folder does so with what is in the server, without faults.
    """
    from sluice.relay.storage import open_storage
    from sluice.relay.storage._local import LocalStorage

    move(LocalStorage)

    def removed(folder: Any, *args: Any, **options: Any) -> None:
        # who took this function while the server was there calls it now
        if DIRECTLY not in os.environ:
            return _RMTREE(folder, *args, **options)
        store = open_storage(url_of(Path(folder), os.environ[DIRECTLY])).store  # type: ignore[attr-defined]
        for found in obstore.list(store).collect():
            obstore.delete(store, found["path"])
        return _RMTREE(folder, *args, **options)

    def copied(source: Any, target: Any, *args: Any, **options: Any) -> Any:
        if Path(source).is_dir():
            return _COPYTREE(source, target, *args, **options)
        urls = [url_of(Path(one), os.environ[DIRECTLY]) for one in (source, target)]
        stores = [open_storage(url).store for url in urls]  # type: ignore[attr-defined]
        Path(target).mkdir(parents=True, exist_ok=True)
        for found in obstore.list(stores[0]).collect():
            obstore.put(stores[1], found["path"], obstore.get(stores[0], found["path"]).bytes())
        return target

    shutil.copytree = copied
    shutil.rmtree = removed  # type: ignore[assignment]


def _move_in_children(pattern: str) -> None:
    """In each Python that a test starts, whatever environment it gets.

    `pattern` is where folders are there. multiprocessing starts one in its own way.
    """
    start = subprocess.Popen.__init__
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [*IN_CHILDREN, *filter(None, [os.environ.get("PYTHONPATH")])]
    )

    def started(process: Any, *args: Any, **options: Any) -> None:
        env = dict(os.environ if options.get("env") is None else options["env"])
        paths = [*IN_CHILDREN, *filter(None, [env.get("PYTHONPATH")])]
        told = (VARIABLE, DIRECTLY, LISTS_LAG, PATIENCE)
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in told or name.startswith("AWS_")
        }
        env |= kept | {VARIABLE: pattern, "PYTHONPATH": os.pathsep.join(paths)}
        start(process, *args, **options | {"env": env})

    subprocess.Popen.__init__ = started  # type: ignore[assignment]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(terminalreporter.config._everywhere.happened)


def pytest_unconfigure(config: pytest.Config) -> None:
    config._everywhere.close()  # type: ignore[attr-defined]
    sys.stdout.flush()


def main() -> None:
    """A module that isn't a test, with its arguments."""
    everywhere = Everywhere()
    sys.argv = sys.argv[1:]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    finally:
        print(everywhere.happened)
        everywhere.close()


if __name__ == "__main__":
    main()
