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
import sys
import tempfile
from pathlib import Path
from typing import Any

import obstore
import pytest

from tests.object_store.proxy import Fault
from tests.object_store.s3_server import BUCKET, S3Process, S3Server

VARIABLE = "SLUICE_TEST_FOLDERS_ARE_IN"
# Lists that lag (``lag:0.5:1.0``) aren't among them: the tests themselves list what they have just written.
FAULTS = "slow:0.02:0.05 busy:0.01 failed:0.01 failed_after:0.02 lost:0.02 reset:0.01 cut:0.01 flipped:0.01"
_SITE = str(Path(__file__).with_name("site"))
_CHECKED = ("/parts/", "/windows/")
"""Where a flipped bit is found by a checksum; elsewhere the connection's TLS is what finds it."""
_METHODS = (
    "new_file", "new_whole_file", "new_scratch", "create", "replace", "read", "open", "names", "sizes", "remove",
    "remove_empty_directory", "sweep",
)  # fmt: skip


def install() -> None:
    """In this process folders are in the S3 server that the environment names."""
    import relay.storage._local as module
    from relay.storage._open import open_storage

    local: Any = module.LocalStorage
    plain = {name: getattr(local, name) for name in _METHODS}

    def place(storage: Any) -> Any:
        if "_elsewhere" not in storage.__dict__:
            root = storage._root
            there = root.is_dir() and any(root.iterdir())
            storage._elsewhere = None if there else open_storage(_url(root))
        return storage._elsewhere

    def moved(name: str) -> Any:
        def call(storage: Any, *args: Any) -> Any:
            elsewhere = place(storage)
            return plain[name](storage, *args) if elsewhere is None else getattr(elsewhere, name)(*args)

        return call

    for name in _METHODS:
        setattr(local, name, moved(name))
    whole_folder = shutil.copytree

    def copied(source: Any, target: Any, *args: Any, **options: Any) -> Any:
        """A relay log that isn't in a folder is copied where it is."""
        if Path(source).is_dir():
            return whole_folder(source, target, *args, **options)
        stores = [open_storage(_url(Path(one))).store for one in (source, target)]  # type: ignore[attr-defined]
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        for found in obstore.list(stores[0]).collect():
            obstore.put(stores[1], found["path"], obstore.get(stores[0], found["path"]).bytes())
        return target

    shutil.copytree = copied
    local.lists_may_lag = local.is_remote = property(lambda storage: place(storage) is not None)


def _url(folder: Path) -> str:
    return os.environ[VARIABLE].replace("FOLDER", str(folder).strip("/"))


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
    folder = Path(tempfile.mkdtemp(prefix="s3-everywhere-"))
    process = S3Process(folder)
    server = S3Server(process)
    os.environ |= server.environment
    os.environ[VARIABLE] = server.url("FOLDER")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [_SITE, str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    )
    install()
    server.inject(*faults(os.environ.get("SLUICE_TEST_FAULTS", FAULTS), int(os.environ.get("SLUICE_TEST_SEED", "1"))))
    config._s3 = process, server  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    _, server = terminalreporter.config._s3
    happened = [f"{fault.kind} {fault.path} {fault.happened}".replace("  ", " ") for fault in server.proxy._faults]
    terminalreporter.write_line(f"requests to {BUCKET}: {dict(server.counted())}; faults: {', '.join(happened)}")


def pytest_unconfigure(config: pytest.Config) -> None:
    process, server = config._s3  # type: ignore[attr-defined]
    server.close()
    process.close()
    sys.stdout.flush()
