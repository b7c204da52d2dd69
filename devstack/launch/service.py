"""The record of a part by which the stack runs it, one a process.

And the ways to ask a server whether it is ready.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sys
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.devstack.repository import IMPORT_PATH, REPOSITORY
from sluice.errors import RequestError, Signal

LOOPBACK = "127.0.0.1"
NO_RECORDING = "-"
"""Stands in the place of a recording: none, the stand-in cluster is there for live traffic."""
OWN_PROGRAMS = Path(sys.prefix) / "programs"
"""The folder in which `sluice programs --get` puts programs for a user without root."""


class ServiceNotReady(Signal):
    """The part answers, but not yet as it should; the text is what is missing."""


class MissingProgram(RequestError):
    """A program that the part needs is not installed; the text names it, and how to get it."""

    hint = "install the program that it names, or put it on PATH"


@dataclass(frozen=True, slots=True)
class Service:
    """One process of the stack."""

    name: str
    argv: tuple[str, ...]
    ports: Mapping[str, int]
    """Purpose → port on 127.0.0.1, e.g. {"client": 21017}."""
    probe: Callable[[], None]
    """Returns when the part serves; raises anything otherwise. Takes at most a few seconds."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Additions to the environment. No secrets: they are written to state.json."""
    secrets: Mapping[str, Path] = field(default_factory=dict)
    """Variables whose values are in files; they are read when the part starts, and written nowhere.
    """
    cwd: Path = REPOSITORY
    needs: tuple[str, ...] = ()
    """Parts that must be ready before this one is started."""
    prepare: Callable[[], None] = lambda: None
    """Makes the data folder and what else must exist before the first start.

    Does nothing the second time.
    """
    data: Path | None = None
    """The folder that holds the part's state."""
    start_timeout_s: float = 60
    summary: str = ""
    """The part's address, for `sluice up` and `sluice status`."""


@dataclass(frozen=True, slots=True)
class StackPaths:
    """A stack's paths: its state folder, its ports, and the recording its upstream plays."""

    home: Path
    ports: Mapping[str, int]
    recording: Path

    def data(self, part: str) -> Path:
        """Return the data folder of a part."""
        return self.home / part

    def secret(self, name: str) -> Path:
        """Return the file of mode 0600 that holds a secret of this stack.

        It is made at the first call.
        """
        path = self.home / "secrets" / name
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = path.with_name(f"{name}.{secrets.token_hex(4)}.new")
            draft.touch(mode=0o600)
            draft.write_text(secrets.token_urlsafe(24), encoding="ascii")
            with contextlib.suppress(FileExistsError):  # another process was first
                os.link(draft, path)
            draft.unlink()
        return path

    @property
    def config(self) -> Path:
        """Return the pipeline's settings file."""
        return self.home / "sluice.toml"


def secrets_of(part: Service) -> dict[str, str]:
    """Return the part's secret variables with their values. Raises OSError."""
    return {name: path.read_text(encoding="ascii") for name, path in part.secrets.items()}


def find_program(name: str, package: str) -> str:
    """Return the path of an installed program; `package` is the Debian package that has it.

    Raises MissingProgram.
    """
    places = f"/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin:{OWN_PROGRAMS / 'bin'}"
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{places}")
    if not found:
        raise MissingProgram(
            f"{name} is not installed: as root: apt-get install {package}; without root: sluice"
            " programs --get"
        )
    return found


def base_environment() -> dict[str, str]:
    """Return the environment every part gets.

    It is ours without settings for Airflow, Spark, Java and Python that a user has for other
    things.
    """
    foreign = (
        "AIRFLOW",
        "SPARK_",
        "PYSPARK_",
        "PYTHON",
        "JAVA_TOOL",
        "JDK_JAVA",
        "ETCD",
        "MYSQL",
        "MARIADB",
        "SLUICE_",
        "PUMP_",
        "VIRTUAL_ENV",
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    env["PATH"] = (
        f"{Path(sys.executable).parent}:{env.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"
    )
    env["PYTHONPATH"] = str(IMPORT_PATH)
    env["PYTHONUNBUFFERED"] = "1"
    env["NO_PROXY"] = env["no_proxy"] = "127.0.0.1,localhost"
    return env


def get_json(url: str, timeout_s: float = 2) -> Any:
    """Get `url` past any proxy and parse the answer as JSON. Raises OSError or ValueError."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=timeout_s) as response:
        return json.load(response)
