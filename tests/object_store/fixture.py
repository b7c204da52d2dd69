"""`s3_server`: a folder of its own on an S3-protocol server, which the tests of a worker share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.object_store.s3_server import CREDENTIALS, S3Process, S3Server

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def s3_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Process]:
    process = S3Process(tmp_path_factory.mktemp("s3"))
    yield process
    process.close()


@pytest.fixture
def s3_server(s3_process: S3Process, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """See `tests.object_store.s3_server`."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    server = S3Server(s3_process, f"test-{next(_numbers)}")
    yield server
    server.close()
