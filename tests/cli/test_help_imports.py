"""Every command answers `--help` without loading what only its work needs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sluice.cli import _COMMANDS
from tests.cli.typed import ROOT

HEAVY = {"fastapi", "grpc", "numpy", "pandas", "pyarrow", "pyspark", "uvicorn"}
"""What takes a tenth of a second or more to import."""
MAX_MODULES = 330
"""Modules that may be loaded: `config --help` loads 289, in 0.2 s of CPU time."""
_ASK_EACH = """
import contextlib, io, json, os, sys
import sluice.cli
for name in sys.argv[1:]:
    read, write = os.pipe()
    if os.fork() == 0:  # nothing that another command loads is there
        with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
            sluice.cli.main([name, "--help"])
        assert name in shown.getvalue().lower(), shown.getvalue()
        os.write(write, json.dumps([name, list(sys.modules)]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as found:
        print(found.read(), flush=True)
    os.wait()
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """The modules that are loaded after a command's help was printed."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK_EACH, *_COMMANDS], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


def test_no_help_loads_spark_arrow_or_a_server(loaded: dict[str, list[str]]) -> None:
    assert loaded.keys() == _COMMANDS.keys()
    heavy = {name: HEAVY.intersection(modules) for name, modules in loaded.items()}
    assert {name: found for name, found in heavy.items() if found} == {}


def test_no_help_loads_many_modules(loaded: dict[str, list[str]]) -> None:
    many = {name: len(modules) for name, modules in loaded.items() if len(modules) > MAX_MODULES}
    assert many == {}
