"""What containers start: secrets come from files into the process only, and what isn't right is
said in a line.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from deploy.start import airflow_api, bucket, healthy, standin, traffic
from sluice.airflow import scheduler as scheduler_command
from tests.deploy.compose_file import ROOT
from tests.object_store.s3_server import S3Server
from tests.pump_service.authority import Authority


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={"PATH": os.environ["PATH"], **environment},
    )  # fmt: skip


def test_a_program_gets_its_secrets_from_files_and_nothing_else_changes(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hush\nnot this")
    (tmp_path / "nothing").write_text("")
    shown = "import os, json; print(json.dumps(dict(os.environ)))"
    done = run(
        "deploy.start.secret_files",
        sys.executable,
        "-c",
        shown,
        AWS_SECRET_ACCESS_KEY_FILE=str(tmp_path / "key"),
        SLUICE_TIDB_PASSWORD_FILE=str(tmp_path / "nothing"),
        AWS_ACCESS_KEY_ID="mine",
        AWS_ACCESS_KEY_ID_FILE="/not/read",
        OTHER_FILE="/neither",
    )
    got = json.loads(done.stdout)
    assert got["AWS_SECRET_ACCESS_KEY"] == "hush"
    assert got["SLUICE_TIDB_PASSWORD"] == ""
    assert got["AWS_ACCESS_KEY_ID"] == "mine"
    assert "OTHER" not in got


def test_a_secret_that_cannot_be_read_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    done = run(
        "deploy.start.secret_files",
        "echo",
        "started",
        AWS_ACCESS_KEY_ID_FILE=str(tmp_path / "none"),
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == f"echo isn't started: AWS_ACCESS_KEY_ID_FILE: {tmp_path}/none: No such file or"
        " directory\n"
    )
    assert run("deploy.start.secret_files", "no-such-program").stderr.startswith(
        "no-such-program isn't started: "
    )


def test_airflows_password_is_written_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("hush")
    target = tmp_path / "passwords.json"
    for _ in range(2):  # a container that starts again
        airflow_api.write_passwords(str(tmp_path / "given"), target)
    assert json.loads(target.read_text()) == {"admin": "hush"}
    assert target.stat().st_mode & 0o777 == 0o600
    (tmp_path / "given").write_text("")
    done = run(
        "deploy.start.airflow_api",
        AIRFLOW_ADMIN_PASSWORD_FILE=str(tmp_path / "given"),
        AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE=str(target),
    )  # fmt: skip
    assert done.returncode == 1
    assert "is empty; deploy/make-secrets writes one" in done.stderr


def test_a_bucket_is_made_once_and_its_secret_is_in_no_message(s3_server: S3Server) -> None:
    # by which the server checks signed URLs
    secrets = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "test"}
    url = "s3://mine/relay?region=us-east-1&scheme=http&endpoint_override=127.0.0.1:"
    assert bucket.make(f"{url}{s3_server.proxy.port}", secrets) == "bucket mine is there now"
    assert bucket.make(f"{url}{s3_server.proxy.port}", secrets).startswith("bucket mine is there")
    # by the store's signature, by nobody
    for refused in (f"{url}{s3_server.proxy.port}", f"{url}1"):
        done = run(
            "deploy.start.bucket", refused, AWS_ACCESS_KEY_ID="me", AWS_SECRET_ACCESS_KEY="hush"
        )
        assert done.returncode == 1
        assert done.stderr.startswith("bucket: ")
        assert "hush" not in done.stderr + done.stdout
    assert run("deploy.start.bucket", url).stderr == "bucket: AWS_ACCESS_KEY_ID is missing\n"


class Told:
    """A server that answers each GET with `answers` of its path."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.answers: dict[str, object] = {}
        told = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path in told.answers
                self.send_response(200 if found else 503)
                self.end_headers()
                self.wfile.write(json.dumps(told.answers.get(self.path)).encode())

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http{'s' if tls else ''}://{self.address}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def told() -> Iterator[Told]:
    server = Told()
    yield server
    server.close()


def test_a_pump_is_healthy_when_the_registry_shows_it_online(
    told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    told.answers["/status"] = {"status": {"a": {"state": "online"}, "b": {"state": "paused"}}}
    assert healthy.main(["pump", told.url, "a"]) == 0
    assert healthy.main(["pump", told.url, "b"]) == 1
    assert healthy.main(["pump", told.url, "c"]) == 1
    assert "pump b is paused" in capsys.readouterr().out


def test_a_pump_that_wants_certificates_is_asked_with_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("pump", "pump")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    tls.load_verify_locations(authority.path)
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    pump = Told(tls)
    pump.answers["/status"] = {"status": {"a": {"state": "online"}}}
    assert healthy.main(["pump", pump.url, "a"]) == 1
    monkeypatch.setenv("PUMP_SSL_CERT", str(certificate))
    monkeypatch.setenv("PUMP_SSL_KEY", str(key))
    assert healthy.main(["pump", pump.url, "a"]) == 0
    pump.close()


def test_a_part_of_airflow_is_healthy_when_its_heartbeat_is_young(told: Told) -> None:
    told.answers["/api/v2/monitor/health"] = {
        "scheduler": {"status": "healthy"},
        "triggerer": {"status": None},
    }
    assert healthy.main(["airflow", told.url, "scheduler"]) == 0
    assert healthy.main(["airflow", told.url, "triggerer"]) == 1
    assert healthy.main(["airflow", told.url, "dag_processor"]) == 1


def test_a_worker_is_healthy_when_a_master_knows_it(told: Told) -> None:
    told.answers["/json/"] = {"id": "worker-1", "masterurl": ""}
    assert healthy.main(["spark-worker", told.url]) == 1
    told.answers["/json/"] = {"id": "worker-1", "masterurl": "spark://m:7077"}
    assert healthy.main(["spark-worker", told.url]) == 0


def test_what_answers_otherwise_or_not_at_all_is_not_healthy(told: Told) -> None:
    assert healthy.main(["http", told.url]) == 1
    assert healthy.main(["grpc", told.address]) == 1  # HTTP/1
    told.close()
    for kind in ("http", "pump", "spark-worker"):
        assert healthy.main([kind, told.url]) == 1
    assert healthy.main(["grpc", told.address]) == 1
    assert healthy.main(["tcp", told.address]) == 2


def test_an_address_without_a_host_is_this_machines(
    monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "127.0.0.1")
    told.answers["/json/"] = {"masterurl": "spark://m:7077"}
    port = told.address.rpartition(":")[2]
    assert healthy.main(["http", f"http://:{port}/json/"]) == 0
    assert healthy.main(["spark-worker", f"http://:{port}"]) == 0
    assert healthy.main(["grpc", f":{port}"]) == 1


def test_traffic_is_a_workload_or_the_recording_that_the_stand_in_plays() -> None:
    assert traffic.order({"TRAFFIC_RATE": "5"}) == (
        "/workload", {"rate": 5.0, "transactions": None, "rows": 3, "tables": 4},
    )  # fmt: skip
    assert traffic.order(
        {"STANDIN_RECORDING": "shop", "TRAFFIC_SPEED": "max", "TRAFFIC_UNTIL": ""}
    ) == (
        "/replay",
        {"until": None, "speed": "max"},
    )
    words = standin.command(
        "standin", {"ETCD_URL": "http://etcd:2379", "STANDIN_RECORDING": "/recordings/shop"}
    )
    assert words[-2:] == ["--recording", "/recordings/shop"]
    assert "--recording" not in standin.command(
        "standin", {"ETCD_URL": "http://etcd:2379", "STANDIN_RECORDING": ""}
    )


SCHEDULER = """
import os, signal, subprocess, sys, time
worker, scheduler = sys.argv[1:]
child = subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE)
child.stdout.readline()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("runs", flush=True)
child.wait()
exec(scheduler)
"""
STUCK = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True);"
    " time.sleep(600)"
)
WITH_TASK = """
import subprocess, sys
task = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"])
task.wait()
"""


@pytest.mark.quick_cases("a task")
@pytest.mark.parametrize(
    ("worker", "scheduler", "code", "said"),
    [
        (WITH_TASK, "sys.exit(3)", 3, ""),
        (
            STUCK,
            "sys.exit(3)",
            3,
            "workers of Airflow's executor run no task and don't end: killed\n",
        ),
        (
            STUCK,
            STUCK,
            -signal.SIGKILL,
            "workers of Airflow's executor run no task and don't end: killed\n"
            "Airflow's scheduler doesn't end: killed\n",
        ),
    ],
    ids=["a task", "a worker that hangs", "a scheduler that hangs as well"],
)
def test_a_scheduler_told_to_end_ends_whatever_hangs(
    worker: str, scheduler: str, code: int, said: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(scheduler_command, "_SWEEP_S", 0.2)
    command = [sys.executable, "-c", SCHEDULER, worker, scheduler]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        process.terminate()
        scheduler_command.end_tasks(process)
        process.stdout.read()
    assert process.returncode == code
    assert capsys.readouterr().err == said
