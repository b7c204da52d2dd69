"""The doctor names what isn't right with its way out, whatever else doesn't answer."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections import namedtuple
from pathlib import Path

import pytest
from click.testing import CliRunner

from sluice.cli import group, main
from sluice.errors import FAIL, OK, WARN, CheckResult
from sluice.etl import operate
from sluice.etl.operate.doctor import check_pipeline
from sluice.etl.settings import load_settings
from sluice.tidb import EtcdClient
from tests.cli.test_takeover_check import tidb, upstream  # noqa: F401 fixtures
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS, land

_Usage = namedtuple("_Usage", "total used free")


def settings_file(folder: Path, pd: str, relay: str, database: str) -> str:
    file = folder / "sluice.toml"
    file.write_text(
        f'[upstream]\npd-urls = "{pd}"\n[relay]\nurl = "{relay}"\n[downstream]\n{database}'
        '[spark]\nremote = "sc://127.0.0.1:1"\n'
    )
    return str(file)


def test_each_party_is_a_result_and_what_is_wrong_has_a_way_out(
    upstream: str,  # noqa: F811
    tidb: dict[str, object],  # noqa: F811
    mariadb: MariaDBServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with EtcdClient(upstream) as etcd:
        etcd.put(
            "/topology/tidb/127.0.0.1:4000/info", json.dumps({"status_port": tidb["port"]}).encode()
        )
    relay = (tmp_path / "relay").as_uri()
    land(RECORDINGS / "shop", relay, 700)
    settings = load_settings(
        settings_file(
            tmp_path, upstream, relay, f'host = "127.0.0.1"\nport = {mariadb.port}\nuser = "root"\n'
        )
    )

    def found() -> dict[tuple[str, str], list[CheckResult]]:
        results: dict[tuple[str, str], list[CheckResult]] = {}
        for each in check_pipeline(settings):
            results.setdefault((each.area, each.state), []).append(each)
        return results

    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(10**12, 0, 9 * 10**11))
    seen = found()
    assert ("upstream", OK) in seen
    assert "suffice" in seen["downstream", OK][0].text
    assert len(seen["disk", OK]) == 2
    assert "ignore-error" in seen["tidb", WARN][0].text
    assert "pump-1" in seen["pumps", WARN][0].text
    assert "no server takes connections" in seen["spark", FAIL][0].text
    assert seen["archive", WARN] and seen["verify", WARN]
    assert all(each.hint for (_, state), some in seen.items() if state != OK for each in some)

    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(10**12, 0, 10**9))
    tidb["binlog"] = {"enable": True}
    operate.pause(settings, operate.LAND)
    seen = found()
    assert "1.0 GB of 1.0 TB are free" in seen["disk", WARN][0].text
    assert ("tidb", WARN) not in seen
    assert any("landing is paused" in each.text for each in seen["replication", FAIL])


@pytest.mark.slow
def test_what_does_not_answer_is_a_result_and_the_rest_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    relay = (tmp_path / "relay").as_uri()
    file = settings_file(
        tmp_path,
        f"http://127.0.0.1:{port}",
        relay,
        f'host = "127.0.0.1"\nport = {port}\nuser = "root"\n',
    )
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--config", file])
    assert ended.value.code == 1
    text = capsys.readouterr().out
    for area in ("upstream", "tidb", "downstream", "spark", "replication", "pumps"):
        assert re.search(rf"^FAIL +{area} .*\n +-> \S", text, re.MULTILINE), (area, text)
    assert re.search(r"^(ok|warn) +disk ", text, re.MULTILINE)
    with pytest.raises(SystemExit):
        main(["doctor", "--config", file, "--json"])
    assert {each["state"] for each in json.loads(capsys.readouterr().out)["results"]} >= {FAIL}


def test_init_writes_settings_that_load_checks_them_and_names_the_next_command(
    upstream: str,  # noqa: F811
    mariadb: MariaDBServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "sluice.toml"
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE USER bare@'%' IDENTIFIED BY 'geheim-78'")
    monkeypatch.setenv("SLUICE_DOWNSTREAM_PASSWORD", "geheim-78")

    def ran(*words: str) -> tuple[int | str | None, str]:
        with pytest.raises(SystemExit) as ended:
            main(
                [
                    *("init", "--pd-urls", upstream, "--tidb", "reader@127.0.0.1:1"),
                    *("--downstream", f"bare@127.0.0.1:{mariadb.port}"),
                    *("--relay-url", (tmp_path / "relay").as_uri(), "--output", str(file), *words),
                ]
            )
        return ended.value.code, "".join(capsys.readouterr())

    code, text = ran()
    settings = load_settings(file)
    assert settings.upstream.pd_urls == upstream
    assert (settings.upstream.sql_user, settings.upstream.sql_port) == ("reader", 1)
    assert (settings.downstream.user, settings.downstream.port) == ("bare", mariadb.port)
    assert code == 1
    assert re.search("^ok +upstream ", text, re.MULTILINE)
    assert re.search("^FAIL +downstream .*lacks rights", text, re.MULTILINE)
    assert f"`sluice grants --config {file}`" in text
    assert f"then `sluice doctor --config {file}`" in text
    assert "geheim-78" not in text + file.read_text()
    before = file.read_text()
    code, text = ran()
    assert code == 1 and "is there already" in text and file.read_text() == before
    assert ran("--tidb", "no address here")[0] == 2


@pytest.mark.slow
def test_init_asks_for_what_the_options_leave_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sluice.toml"
    done = CliRunner().invoke(
        group,
        ["init", "--output", str(file), "--relay-url", (tmp_path / "relay").as_uri()],
        input='http://127.0.0.1:1\nnot an address\n[::1]:4000\nu"x@db.example\n',
    )
    assert "invalid address" in done.output
    settings = load_settings(file)
    assert (settings.upstream.sql_host, settings.upstream.sql_user) == ("::1", "root")
    assert (settings.downstream.host, settings.downstream.user) == ("db.example", 'u"x')
    assert settings.downstream.port == 3306
