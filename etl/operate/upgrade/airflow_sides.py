"""Check both sides of Airflow: the environment of its tasks, and what Airflow itself has installed.

Each is another Python, which is asked by a process of its own.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from sluice.errors import FAIL, OK, WARN, CheckResult
from sluice.etl.settings.airflow_section import Airflow

__all__ = ["check_airflow", "check_provider"]

_TIMEOUT_S = 60.0
_PROVIDER = "airflow-provider-sluice"
_INSTALLED = """
import json
from sluice.airflow.messages import PROTOCOL, distribution
name, version = distribution()
print(json.dumps({"name": name, "version": version, "protocol": PROTOCOL}))
"""
"""Every version of the provider and of the package has these names."""
_TOGETHER = (
    "replace the pipeline's package there and the provider in Airflow together, while the DAGs are"
    " paused"
)


def check_airflow(section: Airflow) -> CheckResult:
    """Compare the protocol of the environment that Airflow's tasks start with this version's."""
    if not section.python:
        return CheckResult(
            "airflow",
            OK,
            "tasks run in Airflow's own environment: this package is to be installed there",
        )
    try:
        there, here = _hello(section.python), _hello(sys.executable)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return CheckResult(
            "airflow", FAIL, f"[airflow] python = {section.python!r} doesn't answer: {error}",
            "install Sluice there, or name the interpreter of its environment",
        )  # fmt: skip
    text = (
        f"[airflow] python = {section.python!r} has Sluice {there['version']} with protocol"
        f" {there['protocol']}, this is {here['version']} with protocol {here['protocol']}"
    )
    if there["protocol"] == here["protocol"]:
        return CheckResult("airflow", OK, text)
    return CheckResult("airflow", WARN, text, _TOGETHER)


def check_provider(section: Airflow, python: str = "") -> CheckResult:
    """Compare what Airflow has installed of Sluice with this version.

    `python`: the interpreter of Airflow's environment, "" for that of the program `airflow`.
    """
    where = python or _interpreter_of_airflow()
    if not where:
        return CheckResult(
            "provider",
            OK,
            "what Airflow has installed isn't checked, as no `airflow` is in $PATH:"
            " `--airflow-python` names its interpreter",
        )
    try:
        there, here = _installed(where), _installed(sys.executable)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return CheckResult(
            "provider", FAIL if python else WARN, f"Airflow's {where} has no Sluice: {error}",
            f"`pip install` the wheel {_PROVIDER} there, or name another interpreter:"
            " `--airflow-python`",
        )  # fmt: skip
    text = (
        f"Airflow's {where} has {there['name']} {there['version']} with protocol"
        f" {there['protocol']}, this is {here['version']} with protocol {here['protocol']}"
    )
    if section.python:
        if there["protocol"] == here["protocol"]:
            return CheckResult("provider", OK, text)
        return CheckResult("provider", WARN, text, _TOGETHER)
    if there["name"] == _PROVIDER:
        return CheckResult(
            "provider", FAIL, f"{text}; it has no pipeline, and [airflow] python names none",
            "set [airflow] python to the interpreter of the pipeline's environment",
        )  # fmt: skip
    if there["version"] == here["version"]:
        return CheckResult("provider", OK, text)
    return CheckResult(
        "provider", WARN, text, "right before the upgrade; with it, replace the package there"
    )


def _interpreter_of_airflow() -> str:
    """Return the interpreter that the program `airflow` begins with, "" if there is none."""
    program = shutil.which("airflow")
    if program is None:
        return ""
    with Path(program).open("rb") as file:
        first = file.readline(4096).decode(errors="replace").strip()
    named = first.removeprefix("#!").strip()
    if first.startswith("#!/") and "python" in Path(named).name:
        return named
    # a shell begins it where the path is too long for a first line
    beside = Path(program).with_name("python")
    return str(beside) if beside.exists() else ""


def _hello(python: str) -> dict[str, Any]:
    """Return the first message of the agent, which ends with its input. Raises ValueError."""
    return _answer(python, "-m", "sluice.airflow.agent")


def _installed(python: str) -> dict[str, Any]:
    """Return name, version and protocol of the distribution there. Raises ValueError."""
    return _answer(python, "-c", _INSTALLED)


def _answer(python: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-P", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    first = done.stdout.partition("\n")[0]
    found = json.loads(first) if first.startswith("{") else None
    if not isinstance(found, dict) or not {"protocol", "version"} <= found.keys():
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ValueError(re.sub(r"\s+", " ", said))
    return found
