"""`s3_server`: a folder of its own on an S3-protocol server, which the tests of a worker share."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.object_store import azurite
from tests.object_store.s3_server import CREDENTIALS, S3Process, S3Server, StoreProcess
from tests.ports import free_port

_numbers = itertools.count(1)


def started(folder: Path) -> StoreProcess:
    """The S3 server, or Azurite if the environment says where that is."""
    if azurite.VARIABLE in os.environ:
        return azurite.AzureProcess(folder, free_port())
    return S3Process(folder)


@pytest.fixture(scope="session")
def s3_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    process = started(tmp_path_factory.mktemp("s3"))
    yield process
    process.close()


@pytest.fixture
def s3_server(s3_process: StoreProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """See `tests.object_store.s3_server`."""
    server = S3Server(s3_process, f"test-{next(_numbers)}")
    is_s3 = isinstance(s3_process, S3Process)
    for name, value in (CREDENTIALS if is_s3 else server.environment).items():
        monkeypatch.setenv(name, value)
    yield server
    server.close()
