"""Describe the machine that a benchmark ran on: figures without it can't be compared."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import psutil

_PACKAGES = ("pyspark", "apache-airflow", "pyarrow", "numpy", "grpcio", "plyvel", "pymysql")


def describe() -> dict[str, str]:
    """Processor, memory, and the versions that matter, by name."""
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
