"""A real etcd on free ports."""

import functools
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator

import pytest

from sluice.tidb.etcd import EtcdClient, EtcdError
from tests.ports import free_ports


@functools.cache
def without_fsync() -> tuple[str, ...]:
    """The flag by which etcd doesn't wait for the disk, if this one has it."""
    flag = "--unsafe-no-fsync"
    told = subprocess.run(["etcd", flag, "--version"], capture_output=True)
    return () if told.returncode else (flag,)  # some have it though --help doesn't say so


class EtcdProcess:
    """An etcd child process that can be killed and started again on the same address, with its data
    or without.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        client, peer = free_ports(2)
        self.url = f"http://127.0.0.1:{client}"
        self._peer = f"http://127.0.0.1:{peer}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        arguments = [
            "etcd",
            "--name",
            "one",
            "--data-dir",
            str(self._folder / "data"),
            "--log-level",
            "error",
        ]
        arguments += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        arguments += ["--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer]
        arguments += ["--initial-cluster", f"one={self._peer}", *without_fsync()]
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(arguments, stdout=log, stderr=log)
        until = time.monotonic() + 60
        with EtcdClient(self.url, timeout_s=1) as client:
            while True:
                try:
                    client.get("ready?")
                    return
                except EtcdError:
                    if time.monotonic() > until or self._process.poll() is not None:
                        self.kill()
                        raise AssertionError(
                            (self._folder / "etcd.log").read_text()[-2000:]
                        ) from None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def wipe(self) -> None:
        shutil.rmtree(self._folder / "data")


@pytest.fixture
def etcd_process() -> Iterator[EtcdProcess]:
    """An etcd of the test's own, which it may kill."""
    with tempfile.TemporaryDirectory() as folder:
        etcd = EtcdProcess(pathlib.Path(folder))
        etcd.start()
        try:
            yield etcd
        finally:
            etcd.kill()


@pytest.fixture(scope="session")
def _shared_etcd() -> Iterator[EtcdProcess]:
    with tempfile.TemporaryDirectory() as folder:
        etcd = EtcdProcess(pathlib.Path(folder))
        etcd.start()
        try:
            yield etcd
        finally:
            etcd.kill()


def remove_all(client: EtcdClient, prefix: str) -> None:
    """Remove every key that begins with `prefix`."""
    for item in client.range_prefix(prefix).items:
        client.delete(item.key)


@pytest.fixture
def etcd_url(_shared_etcd: EtcdProcess) -> Iterator[str]:
    """The address of a real etcd that holds no keys."""
    yield _shared_etcd.url
    with EtcdClient(_shared_etcd.url, timeout_s=60) as client:
        remove_all(client, "/")
