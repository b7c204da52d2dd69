"""The doctor names what isn't right with its way out, whatever else doesn't answer."""

from __future__ import annotations

import json
import re
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from click.testing import CliRunner

from sluice.cli import group, main
from sluice.errors import FAIL, OK, WARN, CheckResult
from sluice.etl import operate
from sluice.etl.operate.doctor import check_pipeline
from sluice.etl.operate.time_zones import ServerZone, compare_zones
from sluice.etl.settings import load_settings
from sluice.tidb import EtcdClient
from tests.cli.test_takeover_check import tidb, upstream  # noqa: F401 fixtures
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.ports import free_port

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
    assert re.search(r": \w+ \d+\.\d+\.\d+; its variables", seen["downstream", OK][0].text)
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
    port = free_port()
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
                    *("--spark", "sc://127.0.0.1:1"),
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
    assert re.search(r"^  GRANT SELECT, .* ON `bank`\.\* TO 'bare'@'%';", text, re.MULTILINE)
    assert re.search(r"^FAIL +spark .*sc://127\.0\.0\.1:1", text, re.MULTILINE)
    assert re.search("^warn +pumps +only one is online: pump-1", text, re.MULTILINE)
    assert f"then `sluice doctor --config {file}`" in text
    assert "geheim-78" not in text + file.read_text()
    before = file.read_text()
    code, text = ran()
    assert code == 1 and "is there already" in text and file.read_text() == before
    file.unlink()
    code, text = ran("--json")
    told, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
    assert (code, told["schema"], told["file"]) == (1, 1, str(file)) and len(told["grants"]) > 2
    assert told["next"] == f"sluice doctor --config {file}" and told["failed"] == 3
    file.unlink()
    code, text = ran("--spark", "http://spark")
    assert code == 1 and not file.exists() and "wrote " not in text
    assert f"no '{file}' was written" in text and "http://spark" in text
    assert ran("--tidb", "no address here")[0] == 2


@pytest.mark.slow
def test_init_asks_for_what_the_options_leave_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sluice.toml"
    done = CliRunner().invoke(
        group,
        ["init", "--output", str(file), "--relay-url", (tmp_path / "relay").as_uri()],
        input='http://127.0.0.1:1\nnot an address\n[::1]:4000\nu"x@db.example\nsc://sp:15003\n',
    )
    assert "invalid address" in done.output
    assert "PD's client URLs (--pd-urls): " in done.output
    asked = "Downstream, user@host:port (--downstream, password in $SLUICE_DOWNSTREAM_PASSWORD): "
    assert asked in done.output
    settings = load_settings(file)
    assert (settings.upstream.sql_host, settings.upstream.sql_user) == ("::1", "root")
    assert (settings.downstream.host, settings.downstream.user) == ("db.example", 'u"x')
    assert (settings.downstream.port, settings.spark.remote) == (3306, "sc://sp:15003")
    assert "not compared" in done.output  # the zones


@pytest.mark.parametrize(
    ("upstream_zone", "there", "state"),
    [
        (ServerZone("UTC", 0), ServerZone("+00:00", 0), OK),
        (ServerZone("Asia/Shanghai", 480), ServerZone("CST", 480), OK),
        (ServerZone("Asia/Shanghai", 480), ServerZone("UTC", 0), WARN),
        (ServerZone("America/St_Johns", -150), ServerZone("Nowhere", None), WARN),
        (ServerZone("Nowhere", None), ServerZone("Nowhere", None), WARN),
    ],
)
def test_zones_are_compared_by_what_clocks_show_and_a_difference_has_a_way_out(
    upstream_zone: ServerZone, there: ServerZone, state: str
) -> None:
    found = compare_zones(upstream_zone, there)
    assert found.state == state and upstream_zone.name in found.text and there.name in found.text
    zone = upstream_zone.offset if upstream_zone.minutes is not None else upstream_zone.name
    assert (f"time_zone = '{zone}'" in found.hint) == (state == WARN)
    assert ServerZone("", -150).offset == "-02:30"


def test_the_zone_of_a_real_server_is_read_and_one_that_differs_is_a_warning(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    file = settings_file(
        tmp_path,
        f'http://127.0.0.1:1"\nsql-host = "127.0.0.1"\nsql-port = {mariadb.port}\n# "',
        (tmp_path / "relay").as_uri(),
        f'host = "127.0.0.1"\nport = {mariadb.port}\nuser = "root"\n',
    )
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@global.time_zone")
        before = cursor.fetchone()[0]
        try:
            for zone in ("SYSTEM", "+05:30"):
                cursor.execute("SET GLOBAL time_zone = %s", (zone,))
                (found,) = check_pipeline(load_settings(file), ["zones"])
                assert found.state == OK, found  # one server is both sides
        finally:
            cursor.execute("SET GLOBAL time_zone = %s", (before,))
    assert found.text.count("+05:30 (UTC+05:30 now)") == 2
