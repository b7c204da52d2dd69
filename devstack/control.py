"""Clients of what runs: the cluster's control address, Airflow's REST API, etcd's registry.

The cluster is the stand-in.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.devstack.launch import LOOPBACK, airflow_url, get_json, password_file
from sluice.devstack.launch.airflow import USER
from sluice.devstack.state import StackError

DAG = "sluice_replicate"
REGISTRY_PREFIX = "/tidb-binlog/"
_MAX_ATTEMPTS = 10


class Unreachable(StackError):
    """A part didn't answer; it may be down for a moment."""

    transient = True
    hint = "`sluice up` starts what doesn't run"


class _ServerError(StackError):
    """A part answers that it has failed at what it was asked."""


def _request(
    method: str, url: str, body: Any = None, token: str = "", timeout_s: float = 30
) -> Any:
    request = urllib.request.Request(  # noqa: S310 the caller's own services
        url, method=method, data=None if body is None else json.dumps(body).encode()
    )
    request.add_header("Content-Type", "application/json")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as response:
            text = response.read()
    except urllib.error.HTTPError as error:
        answer = error.read(2_000).decode("utf-8", "replace").strip()
        with contextlib.suppress(ValueError, TypeError, KeyError):
            answer = json.loads(answer)["error"]
        kind = _ServerError if error.code >= 500 else StackError
        raise kind(f"{method} {url}: HTTP {error.code}: {answer}") from None
    except OSError as error:
        raise Unreachable(f"{method} {url}: {getattr(error, 'reason', error)}") from None
    try:
        return json.loads(text) if text.strip() else None
    except ValueError:
        raise StackError(f"{method} {url}: the answer is no JSON: {text[:200]!r}") from None


@dataclass(frozen=True, slots=True)
class ClusterControl:
    """The control address of the stand-in cluster.

    Every call raises StackError, or Unreachable if the address doesn't answer.
    """

    port: int

    @property
    def _url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def status(self) -> dict[str, Any]:
        """Return the stand-in cluster's status.

        ``{"cluster_id", "recording", "state": idle|replaying|done|failed, "error", "counts": {…},
        …}``
        """
        answer: dict[str, Any] = _request("GET", f"{self._url}/status")
        return answer

    def replay(self, until: str | int | None, speed: str, strategy: str) -> None:
        """Begin to send (or go on sending) records through the label or TSO `until`.

        None is the whole recording.
        """
        _request(
            "POST",
            f"{self._url}/replay",
            {"until": until, "speed": speed, "strategy": strategy},
            timeout_s=60,
        )

    def commits(self, after_ts: int, limit: int) -> list[tuple[int, float]]:
        """Return at most `limit` commits with a commit_ts > `after_ts`, ascending.

        Each is (commit_ts, Unix time in ms).
        """
        answer = _request(
            "GET", f"{self._url}/commits?after={after_ts}&limit={limit}", timeout_s=30
        )
        return [(entry[0], entry[1]) for entry in answer]

    def numbered_commits(self, after_ts: int = 0) -> list[tuple[int, float, int | None]]:
        """Return every commit so far with a commit_ts > `after_ts`, ascending.

        Each is (commit_ts, Unix time in ms, the workload's transaction number or None).
        """
        found: list[tuple[int, float, int | None]] = []
        while part := _request(
            "GET",
            f"{self._url}/commits?after={found[-1][0] if found else after_ts}&limit=10000",
            timeout_s=30,
        ):
            found += [(entry[0], entry[1], entry[2]) for entry in part]
        return found

    def workload(self, options: dict[str, Any]) -> None:
        """Begin live traffic.

        The options are those of `sluice.devstack.tidb.workload.WorkloadOptions`.
        """
        _request("POST", f"{self._url}/workload", options, timeout_s=60)

    def add_column(self, schema: str, table: str, name: str) -> None:
        """ALTER TABLE ... ADD COLUMN upstream, a BIGINT that may be NULL."""
        _request(
            "POST",
            f"{self._url}/column",
            {"schema": schema, "table": table, "name": name},
            timeout_s=60,
        )

    def collect_garbage(self, safe_point: int) -> int:
        """TiDB's GC: old versions go through `safe_point` (TSO), less far if a service holds them.

        How far.
        """
        return int(
            _request("POST", f"{self._url}/gc", {"safe_point": safe_point}, timeout_s=60)[
                "safe_point"
            ]
        )

    def delete_everything(self, schema: str, table: str) -> tuple[int, int]:
        """DELETE without WHERE upstream: its commit_ts, and how many rows it took."""
        answer = _request(
            "POST", f"{self._url}/accident", {"schema": schema, "table": table}, timeout_s=60
        )
        return int(answer["commit_ts"]), int(answer["rows"])

    def stop(self) -> None:
        """End what is being sent; open transactions are rolled back."""
        _request("POST", f"{self._url}/stop", {}, timeout_s=60)

    def all_commits(self) -> list[tuple[int, float]]:
        """Every commit so far: (commit_ts, Unix time in ms), ascending."""
        return [(commit_ts, wall_ms) for commit_ts, wall_ms, _ in self.numbered_commits()]


class AirflowClient:
    """Airflow's REST API as the user `admin`.

    Every call raises StackError, or Unreachable if the server doesn't answer.
    """

    def __init__(self, home: Path, port: int) -> None:
        self._url = airflow_url(port)
        self._passwords = password_file(home)
        self._token = ""

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        if not self._token:
            password = json.loads(self._passwords.read_text(encoding="utf-8"))[USER]
            answer = _request(
                "POST", f"{self._url}/auth/token", {"username": USER, "password": password}
            )
            self._token = answer["access_token"]
        # Airflow's database is one SQLite file, which others may be writing: what may be asked
        # twice is.
        for _ in range(_MAX_ATTEMPTS if method in ("GET", "PATCH") else 0):
            with contextlib.suppress(_ServerError):
                return _request(method, f"{self._url}/api/v2{path}", body, self._token)
            time.sleep(1)
        return _request(method, f"{self._url}/api/v2{path}", body, self._token)

    def health(self) -> dict[str, Any]:
        """Return the answer of ``/api/v2/monitor/health``."""
        answer: dict[str, Any] = get_json(f"{self._url}/api/v2/monitor/health")
        return answer

    def pause(self, dag: str = DAG, *, paused: bool) -> None:
        """Pause or unpause a DAG."""
        self._call("PATCH", f"/dags/{dag}", {"is_paused": paused})

    def is_paused(self, dag: str) -> bool:
        """Return whether a DAG is paused."""
        return bool(self._call("GET", f"/dags/{dag}")["is_paused"])

    def is_known(self) -> bool:
        """Return whether the DAG has been read by the dag-processor."""
        try:
            self._call("GET", f"/dags/{DAG}")
        except Unreachable:
            raise
        except StackError as error:
            if "HTTP 404" in str(error):
                return False
            raise
        return True

    def import_errors(self) -> list[str]:
        """Return why DAG files could not be imported."""
        found = self._call("GET", "/importErrors")["import_errors"]
        return [
            f"{entry['filename']}: {entry['stack_trace'].strip().splitlines()[-1]}"
            for entry in found
        ]

    def active_runs(self) -> list[str]:
        """Ids of the runs that are queued or running."""
        found = self._call("GET", f"/dags/{DAG}/dagRuns?state=queued&state=running&limit=100")[
            "dag_runs"
        ]
        return [run["dag_run_id"] for run in found]

    def end_run(self, run_id: str) -> None:
        """End a run, and with it its tasks, as done: the end was requested, nothing went wrong."""
        self._call(
            "PATCH",
            f"/dags/{DAG}/dagRuns/{urllib.parse.quote(run_id, safe='')}",
            {"state": "success"},
        )

    def run_count(self) -> int:
        """Return how many runs of the DAG there have been."""
        return int(self._call("GET", f"/dags/{DAG}/dagRuns?limit=1")["total_entries"])

    def tasks(self) -> dict[str, str]:
        """Task → state in the active run; empty if there is none."""
        states: dict[str, str] = {}
        for run_id in self.active_runs():
            quoted = urllib.parse.quote(run_id, safe="")
            for task in self._call("GET", f"/dags/{DAG}/dagRuns/{quoted}/taskInstances")[
                "task_instances"
            ]:
                states[task["task_id"]] = task["state"] or "none"
        return states


def clear_registry(etcd_port: int) -> int:
    """Delete every pump and drainer from the registry in etcd; returns how many keys there were.

    Raises StackError.
    """
    end = REGISTRY_PREFIX[:-1] + chr(ord(REGISTRY_PREFIX[-1]) + 1)
    answer = _request(
        "POST",
        f"http://{LOOPBACK}:{etcd_port}/v3/kv/deleterange",
        {
            "key": base64.b64encode(REGISTRY_PREFIX.encode()).decode(),
            "range_end": base64.b64encode(end.encode()).decode(),
        },
    )
    return int(answer.get("deleted", 0))
