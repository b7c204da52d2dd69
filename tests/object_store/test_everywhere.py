"""Crash and freeze tests can run on an S3 server (`tests.object_store.everywhere`), and so do
processes they start.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sluice.relay.storage import open_storage
from tests.object_store.everywhere import IN_CHILDREN
from tests.object_store.moved import DIRECTLY, VARIABLE, url_of
from tests.object_store.s3_server import S3Server

CHILD = """
import sys
from sluice.relay.storage import open_storage
storage = open_storage(sys.argv[1])
storage.create("a", b"1")
print(storage.names(""), storage.is_remote)
"""


def test_a_process_that_a_test_starts_has_its_folders_in_the_server(
    s3_server: S3Server, tmp_path: Path
) -> None:
    pattern = s3_server.url("FOLDER")
    env = os.environ | {
        VARIABLE: pattern,
        DIRECTLY: pattern,
        "PYTHONPATH": os.pathsep.join(IN_CHILDREN),
    }
    folder = tmp_path / "relay"
    command = [sys.executable, "-c", CHILD, str(folder)]
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert said == "['a', 'conditional-create-probe'] True\n"
    assert not folder.exists()
    assert open_storage(url_of(folder, pattern)).read("a") == b"1"
