"""`standalone_cluster`, whose workers share nothing with the driver but `standalone_store`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.etl.spark.standalone import ClusterApart
from tests.object_store.s3_server import S3Process, S3Server


@pytest.fixture(scope="module")
def standalone_store(s3_process: S3Process) -> Iterator[S3Server]:
    """An object store whose credentials this process and the workers have."""
    server = S3Server(s3_process, "standalone")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server
    server.close()


@pytest.fixture(scope="module")
def standalone_cluster(
    standalone_store: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterApart]:
    """A master, two workers in mount namespaces of their own, and a Connect server."""
    home = Path(tempfile.mkdtemp(prefix="sluice-cluster-"))
    found = ClusterApart(home, [tmp_path_factory.getbasetemp(), home], standalone_store.environment)
    try:
        found.start(workers=2)
        yield found
    finally:
        found.stop()
        shutil.rmtree(home, ignore_errors=True)
