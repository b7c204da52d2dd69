"""`sluice takeover --check`: what would stop a takeover or differ afterwards, from a drainer.toml,
without writing anything.
"""

from __future__ import annotations

import gzip
import http.server
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from sluice.devstack.control import ClusterControl
from sluice.devstack.recording import Recording
from sluice.devstack.stack import Stack
from sluice.tidb import EtcdClient, NodeStatus, PDClient, Registry
from tests.cli.typed import typed
from tests.etl.apply.test_safe_mode import leave_checkpoint
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS

RECORDING = RECORDINGS / "shop"


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with replayed(RECORDING, tmp_path_factory.mktemp("up")) as url:
        yield url


@contextmanager
def replayed(recording: Path, home: Path) -> Iterator[str]:
    """The URL of a cluster with one pump that has written what the recording holds up to its first
    label.
    """
    stack = Stack(home)
    try:
        stack.up(["etcd", "cluster", "pump-1"], recording=recording)
        control = ClusterControl(stack.site().ports["cluster-control"])
        control.replay(Recording(RECORDING).labels[0].name, "max", "range")
        deadline = time.monotonic() + 60
        while (status := control.status())["state"] != "done":
            assert status["state"] != "failed" and time.monotonic() < deadline, status
            time.sleep(0.05)
        yield f"http://127.0.0.1:{stack.site().ports['cluster']}"
    finally:
        stack.down()


@pytest.fixture
def tidb() -> Iterator[dict[str, object]]:
    """What a TiDB says of its settings, at a status port."""
    said: dict[str, object] = {"binlog": {"enable": True, "ignore-error": True}}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(said).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    said["port"] = server.server_address[1]
    yield said
    server.shutdown()


def check(file: Path) -> tuple[int, CompletedProcess[str]]:
    done = typed("takeover", "--check", file)
    return done.returncode, done


def test_what_would_stop_or_differ_is_listed_and_nothing_is_written(
    upstream: str, mariadb: MariaDBServer, tidb: dict[str, object], tmp_path: Path
) -> None:
    file = tmp_path / "drainer.toml"
    file.write_text(
        f'pd-urls = "{upstream}"\ndetect-interval = 10\n[syncer]\ndb-type ='
        ' "mysql"\nreplicate-do-db = ["bank"]\n[syncer.to]\nhost = "127.0.0.1"\nport ='
        f' {mariadb.port}\nuser = "repl"\npassword = "geheim-77"\n'
    )
    label = Recording(RECORDING).labels[0]
    with (
        mariadb.connect() as connection,
        connection.cursor() as cursor,
        EtcdClient(upstream) as etcd,
        PDClient(upstream) as pd,
    ):
        cursor.execute("CREATE OR REPLACE USER repl@'%' IDENTIFIED BY 'geheim-77'")
        cursor.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO repl@'%'")
        etcd.put(
            "/topology/tidb/127.0.0.1:4000/info", json.dumps({"status_port": tidb["port"]}).encode()
        )
        Registry(etcd).update_drainer(
            NodeStatus(
                "drainer-1:8249", "10.0.0.1:8249", "online", max_commit_ts=5, update_ts=label.ts
            )
        )
        leave_checkpoint(
            connection,
            label.ts,
            cluster_id=pd.cluster_id,
            **{"ts-map": {"primary-ts": 1, "secondary-ts": 2}},
        )

        def state() -> list[object]:
            cursor.execute("SHOW DATABASES")
            found: list[object] = list(cursor.fetchall())
            cursor.execute("SELECT * FROM tidb_binlog.checkpoint")
            pumps = {
                item.key: item.version
                for item in etcd.range_prefix("/tidb-binlog/v1/drainers/").items
            }
            return [*found, *cursor.fetchall(), pumps]

        before = state()
        code, done = check(file)
        assert code == 1
        for text in (
            "detect-interval has no meaning for Sluice",
            "drainer drainer-1:8249 at 10.0.0.1:8249 is online",
            "[binlog] ignore-error is true",
            "only pump-1 is online",
            "the checkpoint can't be read: repl@127.0.0.1",
            "lacks rights: CREATE",
        ):
            assert text in done.stdout, (text, done.stdout)
        cursor.execute("GRANT ALL ON *.* TO repl@'%'")
        Registry(etcd).update_drainer(
            NodeStatus(
                "drainer-1:8249", "10.0.0.1:8249", "paused", max_commit_ts=5, update_ts=label.ts
            )
        )
        tidb["binlog"] = {"enable": False}
        code, said = check(file)
        for text in (
            ("4 are not downstream: bank.account, bank.cart"),
            "[binlog] enable is false",
            "it is not consistent",
            "its ts-map",
            "rights suffice",
        ):
            assert text in said.stdout, (text, said.stdout)
        assert code == 1 and "drainer-1" not in said.stdout
        assert state()[:-1] == before[:-1]
        cursor.execute("CREATE DATABASE bank")
        for name in ("account", "cart", "ledger", "log_nopk"):
            cursor.execute(f"CREATE TABLE bank.{name} (id int)")
        tidb["binlog"] = {"enable": True, "ignore-error": False}
        code, said = check(file)
        assert (
            code == 0
            and "1 have no key: if" in said.stdout
            and "bank.log_nopk" in said.stdout
            and "nothing stops a takeover" in said.stdout
        )
        assert "geheim-77" not in done.stdout + done.stderr + said.stdout + said.stderr


def with_a_definition_that_means_nothing(folder: Path) -> Path:
    """The recording, but that a DDL job in TiKV creates a table with a column without a name."""
    shutil.copytree(RECORDING, folder, ignore=shutil.ignore_patterns("pump-data-dir*"))
    lines = []
    for key, value in Recording(RECORDING).meta_keys():
        changed = value
        if b"mysql.tidb_ttl_task" in value and b'"query"' in value:
            job = json.loads(value)
            job["binlog"]["TableInfo"]["cols"] = [{"id": 1}]
            changed = json.dumps(job).encode()
        lines.append(json.dumps({"key": key.hex(), "value": changed.hex()}))
    (folder / "tikv-meta.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


@pytest.mark.slow
def test_a_definition_in_tikv_that_means_nothing_is_a_finding_not_a_traceback(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    recording, file = (
        with_a_definition_that_means_nothing(tmp_path / "recording"),
        tmp_path / "drainer.toml",
    )
    with (
        replayed(recording, tmp_path / "up") as url,
        PDClient(url) as pd,
        mariadb.connect() as connection,
    ):
        file.write_text(
            f'pd-urls = "{url}"\n[syncer]\ndb-type = "mysql"\n[syncer.to]\nhost = "127.0.0.1"\nport'
            f' = {mariadb.port}\nuser = "root"\n'
        )
        leave_checkpoint(connection, Recording(RECORDING).labels[0].ts, cluster_id=pd.cluster_id)
        code, done = check(file)
    assert code == 1 and "it can't be read from TiKV at the checkpoint: " in done.stdout, done


@pytest.mark.slow
def test_a_wrong_address_is_a_finding_not_a_traceback(tmp_path: Path) -> None:
    file = tmp_path / "drainer.toml"
    file.write_text('pd-urls = "http://127.0.0.1:1"\n[syncer.to]\nhost = "127.0.0.1"\n')
    code, done = check(file)
    assert (
        code == 1
        and "FAIL  upstream  http://127.0.0.1:1" in done.stdout
        and "1 checks: 1 failed" in done.stdout
    )


def test_rights_are_printed_for_the_databases_that_the_rules_let_through(
    upstream: str, tmp_path: Path
) -> None:
    file = tmp_path / "sluice.toml"
    text = f'[upstream]\npd-urls = "{upstream}"\n[relay]\nurl = "{tmp_path.as_uri()}/r"\n'
    text += '[downstream]\nhost = "db"\nuser = "u"\n'
    file.write_text(text)
    whole = typed("grants", "--config", file)
    assert whole.returncode == 0 and " ON `bank`.* TO 'u'@'%';" in whole.stdout, whole
    assert "mysql" not in whole.stdout and "GRANT PROCESS ON *.*" in whole.stdout
    file.write_text(text + '[filter]\nignore-db = ["bank"]\n')
    less = typed("grants", "--config", file, "--user", "'v'@'10.%'", "--tidb")
    assert less.returncode == 0 and "`bank`" not in less.stdout and "PROCESS" not in less.stdout, (
        less
    )
