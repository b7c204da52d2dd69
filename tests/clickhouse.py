"""Run ClickHouse SQL in chDB, which has ClickHouse's formats and tables in a Python package.

The package is of no use to Sluice, so it has an environment of its own, .venv/clickhouse, which is
made once. chDB has no Kafka engine.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kafka_broker import ROOT
from tests.maven_jars import NotAvailableError

_PACKAGE = "chdb==4.4.0"
_HOME = ROOT / ".venv" / "clickhouse"
_UV = ROOT / ".venv" / "uv" / "bin" / "uv"
_TIMEOUT_S = 240
_RUN = """
import json, sys
from chdb.session import Session
session = Session()
for statement in json.load(sys.stdin):
    rows = session.query(statement, "JSONEachRow")
    print(json.dumps([json.loads(line) for line in str(rows).splitlines()]))
"""


def run_statements(statements: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Return the rows of each statement, run one after another in one session.

    Raises NotAvailableError.
    """
    python = _environment() / "bin" / "python"
    done = subprocess.run(
        [python, "-c", _RUN],
        input=json.dumps(statements),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def _environment() -> Path:
    marker = _HOME / _PACKAGE
    if not marker.exists():
        for command in (
            ["venv", "--clear", "--quiet", "--python", ROOT / ".venv" / "bin" / "python", _HOME],
            ["pip", "install", "--quiet", "--python", _HOME / "bin" / "python", _PACKAGE],
        ):
            done = subprocess.run([_UV, *command], capture_output=True, text=True)
            if done.returncode:
                raise NotAvailableError(f"{_PACKAGE}: {done.stderr[-500:]}")
        marker.touch()
    return _HOME
