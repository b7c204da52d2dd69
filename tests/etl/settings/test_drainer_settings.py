"""drainer.toml files as operators have them, read as settings of Sluice."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.cli.config import sluice_toml
from sluice.etl.settings import SettingsError, load_settings, read_drainer
from sluice.etl.settings.drainer_toml import DrainerSettingsError

DRAINER = """
addr = "10.0.0.1:8249"
pd-urls = "http://pd-1:2379,http://pd-2:2379"
data-dir = "data.drainer"
detect-interval = 10
initial-commit-ts = 42
[syncer]
db-type = "tidb"
worker-count = 32
txn-batch = 20
disable-dispatch = false
ignore-schemas = "INFORMATION_SCHEMA,PERFORMANCE_SCHEMA,mysql"
ignore-txn-commit-ts = [470614793860415502]
replicate-do-db = ["~^b.*", "s1"]
[[syncer.replicate-do-table]]
db-name = "test"
tbl-name = "~^a.*"
[[syncer.ignore-table]]
db-name = "test"
tbl-name = "log"
[syncer.to]
host = "db-1"
user = "repl"
password = "hunter2"
port = 4000
read-timeout = "1m"
[syncer.to.checkpoint]
schema = "binlog_state"
[syncer.relay]
log-dir = "/relay"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "drainer.toml"
    path.write_text(text)
    return path


def test_sluice_can_be_pointed_at_the_file_and_its_own_keys_win(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path, DRAINER)
    (tmp_path / "sluice.toml").write_text(
        'drainer-config = "drainer.toml"\n[relay]\nurl = "file:///r"\n[downstream]\nport = 4001\n'
    )
    with caplog.at_level(logging.WARNING):
        settings = load_settings(tmp_path / "sluice.toml")
    assert (settings.upstream.pd_urls, settings.upstream.initial_commit_ts) == (
        "http://pd-1:2379,http://pd-2:2379",
        42,
    )
    downstream = settings.downstream
    assert (downstream.host, downstream.port, downstream.user, downstream.read_timeout_s) == (
        "db-1",
        4001,
        "repl",
        60,
    )
    assert downstream.checkpoint_schema == "binlog_state"
    assert downstream.password() == "hunter2"
    assert "hunter2" not in repr(settings) + caplog.text
    assert settings.apply.worker_count == 32
    assert settings.ignored_ts == {470614793860415502}
    assert [settings.filters.wants_table("test", name) for name in ("a1", "b", "log")] == [
        True,
        False,
        False,
    ]
    assert [
        settings.filters.wants_schema(name) for name in ("bank", "S1", "x", "binlog_state")
    ] == [
        True,
        True,
        False,
        False,
    ]
    assert "[syncer.relay] log-dir has no meaning" in caplog.text
    assert "disable-dispatch" not in caplog.text, "a key that asks for nothing needs no warning"


def test_the_printed_settings_are_the_same_and_hold_no_password(tmp_path: Path) -> None:
    path = written(tmp_path, DRAINER)
    text = sluice_toml(path, "file:///r")
    assert "hunter2" not in text
    assert "password-env" in text
    (tmp_path / "printed.toml").write_text(text)
    (tmp_path / "pointing.toml").write_text(
        'drainer-config = "drainer.toml"\n[relay]\nurl = "file:///r"\n'
    )
    printed, pointing = (
        load_settings(tmp_path / "printed.toml"),
        load_settings(tmp_path / "pointing.toml"),
    )
    assert (printed.upstream, printed.filters, printed.ignored_ts, printed.apply) == (
        pointing.upstream,
        pointing.filters,
        pointing.ignored_ts,
        pointing.apply,
    )
    run = subprocess.run(
        [sys.executable, "-m", "sluice.cli", "config", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "[upstream]" in run.stdout
    assert "hunter2" not in run.stdout + run.stderr


def test_an_encrypted_password_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    written(tmp_path, '[syncer.to]\nhost = "h"\nencrypted_password = "c2VjcmV0"\n')
    (tmp_path / "sluice.toml").write_text(
        'drainer-config = "drainer.toml"\n[upstream]\npd-urls = "x"\n[relay]\nurl = "file:///r"\n'
    )
    with pytest.raises(SettingsError, match="password-env") as caught:
        load_settings(tmp_path / "sluice.toml").downstream.password()
    assert "c2VjcmV0" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("pd-url = 'x'", "unknown key pd-url"),
        ("[syncer]\nworker-counts = 1", "unknown key [syncer] worker-counts"),
        ("[syncer.to]\nhots = 'x'", "unknown key [syncer.to] hots"),
        ("[syncer.to.security]\nca = 'x'", "unknown key [syncer.to.security] ca"),
        ("[syncer.relay]\ndir = 'x'", "unknown key [syncer.relay] dir"),
        ("[syncer]\ndb-type = 'oracle'", "db-type = 'oracle'"),
        ("[syncer.to]\nsync-mode = 3", "sync-mode = 3: 1 or 2 expected"),
        (
            "[syncer.to]\nhost = 'a'\n[syncer.to.checkpoint]\ntype = 'mysql'\nhost = 'b'",
            "must be in the downstream itself",
        ),
        ("[syncer.to]\nread-timeout = 'soon'", "read-timeout = 'soon'"),
        ("[syncer", "drainer.toml"),
    ],
)
def test_what_cannot_be_taken_over_is_refused_by_name(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(DrainerSettingsError) as caught:
        read_drainer(written(tmp_path, text))
    assert part in str(caught.value)
    assert "drainer.toml" in str(caught.value)


def test_a_mistake_in_a_rule_of_the_file_is_told_with_the_rule(tmp_path: Path) -> None:
    written(
        tmp_path,
        '[[syncer.ignore-table]]\ndb-name = "a"\ntbl-name = "~("\n[syncer.to]\nhost = "h"\n',
    )
    (tmp_path / "sluice.toml").write_text(
        'drainer-config = "drainer.toml"\n[upstream]\npd-urls = "x"\n[relay]\nurl = "file:///r"\n'
    )
    with pytest.raises(SettingsError, match=r"ignore-table\[1\] tbl-name = '~\('"):
        load_settings(tmp_path / "sluice.toml")


@pytest.mark.parametrize("kind", ["mysql", "kafka"])
def test_loopback_control_is_taken_over(tmp_path: Path, kind: str) -> None:
    text = f'[syncer]\ndb-type = "{kind}"\nloopback-control = true\nchannel-id = 7\n'
    found = read_drainer(written(tmp_path, text))
    assert found.warnings == []
    assert found.document["downstream"] == {
        "type": kind,
        "loopback-control": True,
        "channel-id": 7,
    }


def test_files_and_kafka_are_taken_over_with_their_savepoint(tmp_path: Path) -> None:
    document = read_drainer(
        written(
            tmp_path,
            'data-dir = "/d"\n[syncer]\ndb-type = "pb"\nsync-ddl ='
            " false\n[syncer.to]\nretention-time = 7\n",
        )
    ).document
    assert document["file"] == {"dir": "/d", "retention-days": 7, "savepoint": "/d/savepoint"}
    assert document["downstream"] == {"type": "file"}
    assert document["filter"] == {"sync-ddl": False}
    document = read_drainer(
        written(
            tmp_path,
            '[syncer]\ndb-type = "kafka"\n[syncer.to]\nkafka-addrs = "k:9092"\ntopic-name ='
            ' "t"\nkafka-max-message-size = 1073741824\n',
        )
    ).document
    assert document["kafka"] == {
        "brokers": "k:9092",
        "topic": "t",
        "max-message-bytes": 1_000_000_000,
        "savepoint": "data.drainer/savepoint",
    }


def test_what_reads_otherwise_than_in_the_original_is_a_warning(tmp_path: Path) -> None:
    warnings = read_drainer(
        written(tmp_path, '[syncer]\nreplicate-do-db = ["shop*", "log_.*"]\nsql-mode = "ANSI"\n')
    ).warnings
    assert [("shop*" in w, "sql-mode" in w) for w in warnings] == [(False, True), (True, False)]
