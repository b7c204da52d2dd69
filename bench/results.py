"""Keep a benchmark's results as JSON beside what it ran on: figures need it to be compared."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = ("pyspark", "apache-airflow", "pyarrow", "numpy", "grpcio", "plyvel", "pymysql")


def document(benchmark: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return `found` with the benchmark's name, the time, the commit and the machine."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    load = [round(each, 2) for each in os.getloadavg()]
    about = {
        "benchmark": benchmark,
        "at": now,
        "commit": _commit(),
        "load": load,
        "environment": describe(),
    }
    return about | {"found": found}


def keep(folder: Path, whole: dict[str, Any]) -> Path:
    """Write a document into `folder` under the benchmark's name and the time; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = whole["at"].replace(":", "").replace("+0000", "Z")
    path = folder / f"{whole['benchmark']}-{stamp}.json"
    path.write_text(json.dumps(whole, indent=1) + "\n")
    return path


def shown(value: float) -> str:
    """Format a figure as people read it: whole from a thousand on, four digits below."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _commit() -> str:
    """Return the commit that is checked out, with a plus if something was changed.

    The version where there is no clone.
    """
    root = Path(__file__).parents[1]
    try:
        command = [
            "git",
            "-C",
            str(root),
            "describe",
            "--always",
            "--exclude=*",
            "--abbrev=12",
            "--dirty=+",
        ]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        from importlib.metadata import version

        return version("sluice")


def describe() -> dict[str, str]:
    """Return processor, memory, and the versions that matter, by name."""
    found = {
        "machine": (
            f"{_processor()}, {os.cpu_count()} cores,"
            f" {psutil.virtual_memory().total / 2**30:.0f} GiB"
        ),
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "database": _first_line(["mariadbd", "--version"]),
    }
    found["packages"] = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES
    )
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _first_line(command: list[str]) -> str:
    environment = os.environ | {"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10, env=environment
        ).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "not found"
