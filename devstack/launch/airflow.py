"""Airflow: api-server, scheduler, dag-processor and triggerer.

With SQLite metadata and LocalExecutor.

Fixed settings stand in ``airflow.cfg`` at the top of the repository; what differs from stack to
stack (paths, ports, secrets) comes from the environment, secrets through ``…_CMD`` so that they
are in files of mode 0600 only.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import os
import secrets
import shlex
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sluice.devstack.launch.service import (
    LOOPBACK,
    Service,
    ServiceNotReady,
    StackPaths,
    base_environment,
    get_json,
)
from sluice.devstack.repository import DAGS, airflow_cfg

PORTS = ("airflow",)
USER = "admin"
_COMPONENTS = {
    "airflow-api": ("api-server",),
    "airflow-scheduler": ("scheduler", "--skip-serve-logs"),
    "airflow-dag-processor": ("dag-processor",),
    "airflow-triggerer": ("triggerer", "--skip-serve-logs"),
}
_HEALTH_KEY = {
    "airflow-scheduler": "scheduler",
    "airflow-dag-processor": "dag_processor",
    "airflow-triggerer": "triggerer",
}
_MIN_PARALLELISM = 6
"""Parallelism for one pipeline and what people trigger, as in airflow.cfg."""
_TASKS_PER_PIPELINE = 3
"""Number of tasks that run all the time."""
_LOCK_TIMEOUT_S = 20
"""How long a process waits for a lock before it fails.

Airflow's database is one SQLite file, which others write, too.
"""
_HEALTH_TTL_S = 0.3
_OPENLINEAGE = "AIRFLOW__OPENLINEAGE__"
_prepare_lock = threading.Lock()
CACHE_FOLDER = Path(sys.prefix) / "share" / "sluice"
"""The folder for what all stacks of this Python begin with."""


def password_file(home: Path) -> Path:
    """Return the file with the generated password of `admin`: JSON ``{"admin": …}``, mode 0600."""
    return home / "airflow" / "secrets" / "passwords.json"


def airflow_url(port: int) -> str:
    """Return the address of Airflow's UI and REST API."""
    return f"http://{LOOPBACK}:{port}"


def airflow(site: StackPaths, dags: Path = DAGS) -> list[Service]:
    """Return the four processes of Airflow. `dags` is the folder with the DAG files."""
    data = site.data("airflow")
    port = site.ports["airflow"]
    env = _environment(site, data, port, dags)
    health = _HealthCache(port)
    return [
        Service(
            name=name,
            argv=(sys.executable, "-m", "airflow", *words),
            env=env,
            cwd=data,
            ports={"http": port} if name == "airflow-api" else {},
            probe=_probe(name, site.home, health),
            prepare=functools.partial(_prepare, data, env, name),
            data=data,
            start_timeout_s=600,
            summary=(
                f"{airflow_url(port)} user {USER}, password in {password_file(site.home)}"
                if name == "airflow-api"
                else ""
            ),
        )
        for name, words in _COMPONENTS.items()
    ]


def reset_runs(home: Path) -> None:
    """Forget every DAG run.

    Puts the empty metadata database back that was kept after the first migration. Only while
    Airflow is down.
    """
    data = home / "airflow"
    template = data / "empty.db"
    if template.exists():
        for leftover in data.glob("airflow.db-*"):
            leftover.unlink()
        shutil.copyfile(template, data / "airflow.db")
    shutil.rmtree(data / "logs", ignore_errors=True)


def _environment(site: StackPaths, data: Path, port: int, dags: Path) -> dict[str, str]:
    def secret(name: str) -> str:
        return f"cat {shlex.quote(str(data / 'secrets' / name))}"

    return {
        "AIRFLOW_HOME": str(data),
        "AIRFLOW_CONFIG": str(airflow_cfg()),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{airflow_url(port)}/execution/",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",  # it is there to be tried
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(password_file(site.home)),
        "AIRFLOW__CORE__FERNET_KEY_CMD": secret("fernet"),
        "AIRFLOW__API__SECRET_KEY_CMD": secret("api"),
        "AIRFLOW__API_AUTH__JWT_SECRET_CMD": secret("jwt"),
        "AIRFLOW__API__HOST": LOOPBACK,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": airflow_url(port),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": (
            f"sqlite:///{data / 'airflow.db'}?timeout={_LOCK_TIMEOUT_S}"
        ),
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(data / "logs"),
        "AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": str(
            data / "logs" / "dag_processor"
        ),
        # setproctitle would overwrite the environment by which leftovers are found
        "SPT_NOENV": "1",
        "SLUICE_CONFIG": str(site.config),
        **_several(site.home / "pipelines"),
        **_openlineage(),
        "PYSPARK_PYTHON": sys.executable,
        "MALLOC_ARENA_MAX": "2",
    }


def _openlineage() -> dict[str, str]:
    """Return settings for OpenLineage's listener: on where its transport is given to this process.

    Without one it is off, whatever else of OpenLineage's is in the user's environment.
    """
    if os.environ.get(f"{_OPENLINEAGE}TRANSPORT"):
        return {key: it for key, it in os.environ.items() if key.startswith(_OPENLINEAGE)}
    return {f"{_OPENLINEAGE}DISABLED": "True"}


def _several(folder: Path) -> dict[str, str]:
    """Return settings for pipelines in a folder beside the stack's own: their tasks run always."""
    if not folder.is_dir():
        return {}
    parallelism = _MIN_PARALLELISM + _TASKS_PER_PIPELINE * len(list(folder.glob("*.toml")))
    return {"SLUICE_PIPELINES": str(folder), "AIRFLOW__CORE__PARALLELISM": str(parallelism)}


def _prepare(data: Path, env: dict[str, str], name: str) -> None:
    """Make secrets and the metadata database, once.

    The four processes ask for it at the same time.
    """
    with _prepare_lock:
        folder = data / "secrets"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write_once(folder / "fernet", lambda: base64.urlsafe_b64encode(os.urandom(32)).decode())
        _write_once(folder / "api", lambda: secrets.token_urlsafe(32))
        _write_once(folder / "jwt", lambda: secrets.token_urlsafe(64))
        _write_once(
            folder / "passwords.json", lambda: json.dumps({USER: secrets.token_urlsafe(12)})
        )
        if _is_migrated(data / "airflow.db"):
            if name == "airflow-scheduler":
                _mark_schedulers_ended(data / "airflow.db")
            return
        for leftover in data.glob("airflow.db*"):  # of a migration that was killed
            leftover.unlink()
        kept = _kept_database()
        if not _is_migrated(kept):
            _migrate(data, env)
            with contextlib.suppress(OSError):  # the Python may be another user's
                _copy_atomically(data / "airflow.db", kept)
        else:
            _copy_atomically(kept, data / "airflow.db")
        _copy_atomically(data / "airflow.db", data / "empty.db")


def _migrate(data: Path, env: dict[str, str]) -> None:
    """Migrate the metadata database; raise RuntimeError if that fails."""
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"],
        env={**base_environment(), **env}, cwd=data, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(
            f"`airflow db migrate` failed: {(done.stdout + done.stderr).strip()[-2000:]}"
        )
    with contextlib.closing(sqlite3.connect(data / "airflow.db")) as database, database:
        database.execute("CREATE TABLE sluice_migrated (done INTEGER)")


def _kept_database() -> Path:
    """Return the path at which an empty database is kept for the next stack.

    Migrating costs some 4 s of CPU time, and gives the same each time. Airflow's version and
    settings decide what is in it; no secret does, and nothing of a stack.
    """
    settings = hashlib.sha256(airflow_cfg().read_bytes()).hexdigest()[:16]
    return CACHE_FOLDER / f"airflow-{version('apache-airflow-core')}-{settings}.db"


def _copy_atomically(source: Path, target: Path) -> None:
    """Copy it as a whole, or not at all. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        shutil.copyfile(source, fresh)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def _mark_schedulers_ended(database: Path) -> None:
    """Mark the schedulers that were killed as over: no scheduler runs now.

    So the next one starts their tasks again at once and not when their last heartbeats have become
    old.
    """
    with contextlib.closing(sqlite3.connect(database, timeout=60)) as connection, connection:
        connection.execute(
            "UPDATE job SET state = 'failed', end_date = latest_heartbeat"
            " WHERE job_type = 'SchedulerJob' AND state = 'running'"
        )


def _write_once(path: Path, make: Callable[[], str]) -> None:
    if not path.exists():
        with open(
            path, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)
        ) as file:
            file.write(make())


def _is_migrated(database: Path) -> bool:
    if not database.exists():
        return False
    try:
        with sqlite3.connect(database) as connection:
            return bool(
                connection.execute(
                    "SELECT 1 FROM sqlite_master WHERE name = 'sluice_migrated'"
                ).fetchall()
            )
    except sqlite3.DatabaseError:
        return False


class _HealthCache:
    """The api-server's health of all components.

    Those that are being started ask side by side, again and again: one answer serves all for
    `_HEALTH_TTL_S`, and so does an error.
    """

    def __init__(self, port: int) -> None:
        self._url = f"{airflow_url(port)}/api/v2/monitor/health"
        self._lock = threading.Lock()
        self._answer: dict[str, Any] | Exception | None = None
        self._until = 0.0

    def ask(self) -> dict[str, Any]:
        """Return the health by component. Raises OSError or ValueError."""
        with self._lock:
            if self._answer is None or time.monotonic() > self._until:
                try:
                    self._answer = get_json(self._url, timeout_s=5)
                except (OSError, ValueError) as error:
                    self._answer = error
                self._until = time.monotonic() + _HEALTH_TTL_S
            answer = self._answer
        if isinstance(answer, Exception):
            raise answer
        return answer


def _probe(name: str, home: Path, health: _HealthCache) -> Callable[[], None]:
    """Return the probe of a component.

    It is ready when Airflow's health shows a heartbeat younger than the component's process.
    """

    def probe() -> None:
        answer = health.ask()
        if answer["metadatabase"]["status"] != "healthy":
            raise ServiceNotReady(f"metadata database: {answer['metadatabase']}")
        if name not in _HEALTH_KEY:
            return
        key = _HEALTH_KEY[name]
        component = answer[key]
        beat = component.get(f"latest_{key}_heartbeat")
        if component["status"] != "healthy" or not beat:
            raise ServiceNotReady(f"{key}: {component}")
        from sluice.devstack.state import load_state

        started = load_state(home).parts.get(name)
        if started and datetime.fromisoformat(beat).timestamp() * 1000 < started.started_ms:
            raise ServiceNotReady(f"{key}: no heartbeat yet since it was started")

    return probe
