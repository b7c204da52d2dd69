"""Start one Airflow api-server with the pages, for all tests of this folder in one worker."""

import pytest

from tests.plugins.api_server import api_server
from tests.plugins.pipeline_with_traps import pipeline_with_traps


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    pipeline = pipeline_with_traps(folder)
    with api_server(folder, pipeline.config, pipeline) as server:
        yield server
