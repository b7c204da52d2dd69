"""`sluice upgrade --check` names what this version can't read, by file and format, and changes
nothing.
"""

from __future__ import annotations

import json
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from subprocess import CompletedProcess

import httpx
import pytest
from confluent_kafka import Producer

from sluice.errors import FAIL, OK, WARN, CheckResult
from sluice.etl.operate.upgrade.airflow_sides import check_airflow, check_provider
from sluice.etl.operate.upgrade.file_kinds import ARCHIVE, RELAY_LOG
from sluice.etl.operate.upgrade.parties import check_checkpoint, check_pumps
from sluice.etl.operate.upgrade.stored_files import KindSeen, look_at_files
from sluice.etl.settings import load_settings
from sluice.etl.settings.airflow_section import Airflow
from sluice.etl.spark.version_check import WorkerVersionMismatch, is_other_sluice
from sluice.etl.spark.version_check import check as check_worker
from sluice.relay.jobs import Jobs, Runner, WriteScope
from sluice.relay.storage import open_storage
from sluice.tidb import NodeStatus
from tests.cli.typed import typed
from tests.etl.downstream.sinks.kafka_topic import broker  # noqa: F401 a fixture
from tests.etl.mariadb_fixture import MariaDBServer
from tests.pump_service.pumpkit import Site
from tests.upgrade.record_rest import kinds_without_a_file
from tests.upgrade.test_newer_formats import DOCUMENTS, everything, newer_json, newer_sealed
from tests.upgrade.test_release_1 import as_it_was, expected_of, unpacked

PLACES = {"relay": RELAY_LOG, "archive": ARCHIVE}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What release 1 wrote."""
    return unpacked(tmp_path / "written")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """PD, its registry, and one pump."""
    site = Site(tmp_path_factory.mktemp("site"))
    site.pump("pump-1")
    yield site
    site.close()


def settings_file(
    folder: Path, pd: str = "http://127.0.0.1:1", port: int = 1, more: str = ""
) -> str:
    path = folder / "shop.toml"
    path.write_text(
        f'[upstream]\npd-urls = "{pd}"\n[relay]\nurl = "file://{folder}/relay"\n'
        f'[archive]\nurl = "file://{folder}/archive"\n'
        f'[downstream]\nhost = "127.0.0.1"\nport = {port}\nuser = "root"\n'
        f'[spark]\nremote = "sc://127.0.0.1:1"\n{more}'
    )
    return str(path)


def looked_at(
    folder: Path, place: str, *, all_files: bool = False
) -> tuple[dict[str, KindSeen], list[CheckResult]]:
    storage = open_storage(f"file://{folder}/{place}")
    kinds, results = look_at_files(storage, PLACES[place], all_files=all_files)
    return {each.kind: each for each in kinds}, results


def checked(*words: str) -> CompletedProcess[str]:
    done = typed("upgrade", "--check", *words)
    assert "Traceback" not in done.stdout + done.stderr
    return done


def test_every_kind_of_file_of_release_1_is_known_and_read(folder: Path) -> None:
    relay, results = looked_at(folder, "relay")
    archive, more = looked_at(folder, "archive")
    assert [each for each in (*results, *more) if each.state != OK] == []
    assert {"window records", "orders", "overrides", "known pumps"} - relay.keys() == {
        "known pumps"
    }
    assert {"days of the catalogue", "segment indexes", "snapshots", "pins"} <= archive.keys()
    assert all(each.formats == {1} for each in (*relay.values(), *archive.values()))
    assert relay["window records"].files == 2, "the oldest and the newest of the hour"
    assert looked_at(folder, "relay", all_files=True)[0]["window records"].files == 3


def test_release_1_s_folder_has_a_file_of_every_kind_and_each_is_read(folder: Path) -> None:
    assert list(kinds_without_a_file(folder / "rest")) == []
    for place in ("relay", "archive"):
        seen, results = looked_at(folder / "rest", place, all_files=True)
        assert [each for each in results if each.state != OK] == []
        spare = {name for name, kind in seen.items() if kind.formats != {1}}
        assert spare <= {"summaries"}, "format 1 is what release 1 writes"


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_file_of_a_later_version_is_a_failure_that_names_it_and_its_format(
    folder: Path, kind: str
) -> None:
    pattern, fake, _ = DOCUMENTS[kind]
    paths = sorted(folder.glob(pattern))
    for path in paths:
        fake(path)
    before = everything(folder)
    _, results = looked_at(folder, pattern.partition("/")[0])
    (failed,) = [each for each in results if each.state == FAIL]
    assert re.search(
        rf"{re.escape(str(paths[-1]))} has format [23], this version .* reads", failed.text
    )
    assert "install the version that wrote it" in failed.hint
    assert everything(folder) == before


def test_of_a_document_that_is_changed_the_newest_counts(folder: Path) -> None:
    (first,) = folder.glob("relay/control/*.json")
    first.with_name("000000000002.json").write_bytes(first.read_bytes())
    newer_json(first)
    assert looked_at(folder, "relay")[0]["orders"].newer == []
    newer_json(first.with_name("000000000002.json"))
    assert len(looked_at(folder, "relay")[0]["orders"].newer) == 1


def test_a_newer_window_at_the_end_of_a_long_log_is_found_by_few_reads(folder: Path) -> None:
    record = next(folder.glob("relay/windows/*/*.json")).read_bytes()
    for hour in range(300):
        hours = folder / f"relay/windows/2026-{hour // 24 % 12 + 1:02d}-{hour % 24 + 1:02d}T05"
        hours.mkdir(parents=True, exist_ok=True)
        for window in range(5):
            (hours / f"{hour:015d}{window:05d}.json").write_bytes(record)
    newest = max(folder.glob("relay/windows/*/*.json"))
    newer_sealed(newest, 3)
    seen = looked_at(folder, "relay")[0]["window records"]
    assert seen.files <= 200
    assert [str(newest) in each for each in seen.newer] == [True]
    assert seen.formats == {1, 3}
    assert looked_at(folder, "relay", all_files=True)[0]["window records"].files > 1_000


def test_damaged_unknown_and_spare_files_are_told_apart(folder: Path) -> None:
    control = next(folder.glob("relay/control/*.json"))
    control.write_text('{"land_paused": true, "unheard_of": 1}')
    (folder / "relay/quality").mkdir()
    (folder / "relay/quality/1700000000000-0123456789ab.json").write_text('{"format": 2}')
    (folder / "relay/unheard-of").mkdir()
    (folder / "relay/unheard-of/1.json").write_text("{}")
    _, results = looked_at(folder, "relay")
    found = {each.state: each for each in results if each.state == FAIL}
    assert str(control) in found[FAIL].text and "unheard_of" in found[FAIL].text
    warned = [each.text for each in results if each.state == WARN]
    assert ["quality runs" in text for text in warned] == [True, False]
    assert "this version doesn't know unheard-of/1.json" in warned[1]


def test_a_pipeline_s_own_folder_is_looked_at_as_well(folder: Path) -> None:
    own = folder / "relay/pipelines/shop/control"
    own.mkdir(parents=True)
    (own / "000000000001.json").write_text('{"format": 2}')
    assert "pipelines/shop/control" in looked_at(folder, "relay")[0]["orders"].newer[0]


def test_the_command_says_what_it_reads_and_what_to_stop_in_which_order(
    folder: Path,
    site: Site,
    mariadb: MariaDBServer,
) -> None:
    as_it_was(folder, mariadb, "checkpoint")
    file = settings_file(folder, site.pd.url, mariadb.port)
    before = everything(folder)
    done = checked("--config", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search("^ok +checkpoint .*: format 1, this version reads 1 to 3$", done.stdout, re.M)
    assert re.search("^ok +pumps +.*: Sluice .* format 1, this .* 1 to 2$", done.stdout, re.M)
    assert re.search("^warn +spark +not checked: ", done.stdout, re.M)
    steps = re.findall(r"^  \d+\. (.*)$", done.stdout, re.M)
    assert re.match("pumps, one at a time, .*, which is the only one", steps[0])
    order = [
        "airflow dags pause sluice_replicate",
        "replace the package",
        "unpause sluice_replicate",
    ]
    at = [next(n for n, step in enumerate(steps) if word in step) for word in order]
    assert at == sorted(at)
    document = json.loads(checked("--config", file, "--json").stdout)
    assert (document["schema"], document["failed"], document["steps"]) == (1, 0, steps)
    windows = next(each for each in document["kinds"] if each["kind"] == "window records")
    assert (windows["formats"], windows["reads"], windows["newer"]) == ([1], [1, 2], [])
    assert everything(folder) == before

    with mariadb.connect() as connection, connection.cursor() as cursor:
        row = json.loads(expected_of(folder)["checkpoint"])
        row["sluice"] |= {"format": 4, "unheard_of": {}}
        cursor.execute("UPDATE tidb_binlog.checkpoint SET checkPoint = %s", (json.dumps(row),))
    done = checked("--config", file)
    assert done.returncode == 1
    assert re.search(
        "^FAIL +checkpoint .*format 4, this version of Sluice reads 3", done.stdout, re.M
    )
    assert "in this order" not in done.stdout


def test_chunks_beside_the_checkpoint_count_and_so_do_running_jobs(
    folder: Path,
    site: Site,
    mariadb: MariaDBServer,
) -> None:
    as_it_was(folder, mariadb, "in_flight")
    file = settings_file(folder, site.pd.url, mariadb.port)
    jobs = Jobs(open_storage(f"file://{folder}/relay"))
    job = jobs.create("verify", {}, WriteScope("db:3306", ()), "ann")
    with job.run(Runner("sluice verify")):
        steps = json.loads(checked("--config", file, "--json").stdout)["steps"]
    assert f"`sluice jobs pause {job.id}`" in steps and f"`sluice jobs resume {job.id}`" in steps
    queues = '[airflow]\nreplication = "service"\nservice-queues = ["east", "west"]\n'
    file = settings_file(folder, site.pd.url, mariadb.port, queues)
    steps = json.loads(checked("--config", file, "--json").stdout)["steps"]
    for order in ("pause", "unpause"):
        both = (f"`airflow dags {order} sluice_service_{number}`" for number in (1, 2))
        assert any(step.startswith(" and ".join(both)) for step in steps), steps
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE tidb_binlog.sluice_chunks (job VARCHAR(64), at_ts BIGINT UNSIGNED, result"
            " MEDIUMTEXT)"
        )
        cursor.execute("INSERT INTO tidb_binlog.sluice_chunks VALUES ('x', 1, '{\"format\": 2}')")
        connection.commit()
    done = checked("--config", file)
    assert done.returncode == 1
    assert re.search("^FAIL +checkpoint .*sluice_chunks has format 2", done.stdout, re.M)


def test_the_resume_record_of_topics_counts(
    folder: Path,
    broker: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    prefix = f"upgrade-{secrets.token_hex(3)}"
    path = folder / "topics.toml"
    path.write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "file://{folder}/relay"\n'
        f'[downstream]\ntype = "kafka"\n[kafka]\nbrokers = "{broker}"\ntopic = "{prefix}"\n'
        f'format = "canal-json"\nsavepoint = "{tmp_path}/savepoint"\n'
        f'resume-topic = "{prefix}-resume"\n'
    )
    settings = load_settings(path)

    def checked_after(**record: object) -> list[CheckResult]:
        producer = Producer({"bootstrap.servers": broker})
        text = {"commit_ts": 5, "schema_version": 1, "job": "", "topics": {}} | record
        producer.produce(f"{prefix}-resume", json.dumps(text), f"sluice-7-{prefix}", partition=0)
        assert producer.flush(60) == 0
        return list(check_checkpoint(settings, 7))

    assert [each.state for each in checked_after()] == [OK, OK]
    (savepoint, record) = checked_after(format=2, unheard_of=True)
    assert (savepoint.state, record.state) == (OK, FAIL)
    assert (
        f"topic {prefix}-resume, offset 1 has format 2, this version of Sluice reads 1"
        in record.text
    )


def test_every_key_that_is_gone_is_named_with_the_nearest(folder: Path) -> None:
    file = settings_file(folder, more='[window]\nmax-byte = 1\n[verifi]\nevery = "1h"\n')
    done = checked("--config", file)
    assert done.returncode == 1
    assert re.search(
        r"^FAIL +settings .* no \[window\] max-byte\n +-> write max-bytes", done.stdout, re.M
    )
    assert re.search(r"^FAIL +settings .* no \[verifi\]\n +-> write verify", done.stdout, re.M)


@pytest.mark.slow
def test_what_can_not_be_reached_is_a_result(folder: Path) -> None:
    done = checked("--config", settings_file(folder))
    assert done.returncode == 1
    for area in ("checkpoint", "pumps"):
        assert re.search(rf"^FAIL +{area} .*\n +-> \S", done.stdout, re.M), done.stdout
    assert re.search("^ok +relay log +window records", done.stdout, re.M)


def test_a_pump_s_data_directory_is_checked_on_its_host(folder: Path) -> None:
    data = folder / "pump"
    done = checked("--data-dir", str(data))
    assert (
        done.returncode,
        done.stdout.splitlines()[0].endswith("format 1, this version reads 1 to 2"),
    ) == (0, True)
    (data / ".format").write_text("3\n")
    before = everything(folder)
    done = checked("--data-dir", str(data), "--json")
    assert done.returncode == 1
    (result,) = json.loads(done.stdout)["results"]
    assert "have format '3'" in result["text"] and "start the version of the pump" in result["hint"]
    assert everything(folder) == before
    assert checked("--data-dir", str(folder / "relay")).returncode == 1


def test_a_running_pump_says_its_version_and_a_newer_format_of_its_data_is_a_failure(
    site: Site, tmp_path: Path
) -> None:
    (pump,) = site.pumps
    about = httpx.get(f"http://{pump.address}/about").json()
    assert about["format"] == 1 and re.match(r"\d+\.\d+", about["version"])
    settings = load_settings(settings_file(tmp_path))
    node = NodeStatus(pump.node_id, pump.address)
    assert [each.state for each in check_pumps(settings, [node], 2)] == [OK]
    assert [each.state for each in check_pumps(settings, [node], 0)] == [FAIL]
    gone = NodeStatus("pump-9", "127.0.0.1:1")
    assert [each.state for each in check_pumps(settings, [gone], 2)] == [WARN]
    assert list(check_pumps(settings, [replace(gone, state="paused")], 2)) == []


@pytest.mark.slow
def test_the_environment_of_airflow_s_tasks_is_asked_for_its_protocol(tmp_path: Path) -> None:
    assert check_airflow(Airflow()).state == OK
    assert check_airflow(Airflow(python=sys.executable)).state == OK
    other = tmp_path / "python"
    other.write_text('#!/bin/sh\necho \'{"protocol": 99, "version": "9.0"}\'\n')
    other.chmod(other.stat().st_mode | stat.S_IXUSR)
    found = check_airflow(Airflow(python=str(other)))
    assert found.state == WARN and "Sluice 9.0 with protocol 99" in found.text
    other.write_text("#!/bin/sh\necho no such module >&2; exit 1\n")
    found = check_airflow(Airflow(python=str(other)))
    assert found.state == FAIL and "no such module" in found.text


def interpreter(path: Path, answer: str) -> str:
    """A program in the place of Python that prints a line."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_what_airflow_has_installed_is_named_beside_this_version(tmp_path: Path) -> None:
    here = check_provider(Airflow(), sys.executable)
    version = metadata.version("sluice")
    assert here.state == OK and f"has sluice {version} with protocol" in here.text
    (protocol,) = set(re.findall(r"protocol (\d+)", here.text))

    def provider(number: object, version: str = "9.0") -> str:
        found = {"name": "airflow-provider-sluice", "version": version, "protocol": number}
        return interpreter(tmp_path / "python", json.dumps(found))

    apart = Airflow(python="/opt/pipeline/bin/python")
    found = check_provider(apart, provider(int(protocol)))
    assert found.state == OK and "has airflow-provider-sluice 9.0 with" in found.text
    assert f"this is {version} with" in found.text
    found = check_provider(apart, provider(99))
    assert found.state == WARN and "replace" in found.hint
    found = check_provider(Airflow(), provider(int(protocol)))
    assert found.state == FAIL and "set [airflow] python" in found.hint
    package = json.dumps({"name": "sluice", "version": "0.0.9", "protocol": int(protocol)})
    found = check_provider(Airflow(), interpreter(tmp_path / "python", package))
    assert found.state == WARN and "sluice 0.0.9" in found.text
    found = check_provider(Airflow(), interpreter(tmp_path / "python", "no JSON"))
    assert found.state == FAIL and "airflow-provider-sluice" in found.hint


def test_the_airflow_in_the_path_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    assert "no `airflow` is in $PATH" in check_provider(Airflow()).text
    found = {"name": "sluice", "version": "0.0.9", "protocol": 1}
    python = interpreter(tmp_path / "bin/python", json.dumps(found))
    program = tmp_path / "bin/airflow"
    for first in (f"#!{python}", "#!/bin/sh"):
        program.write_text(f"{first}\n")
        program.chmod(0o755)
        assert f"Airflow's {python} has sluice 0.0.9" in check_provider(Airflow()).text
    Path(python).unlink()
    program.write_text("#!/usr/bin/false-python\n")
    assert check_provider(Airflow()).state == WARN


def test_a_worker_with_another_sluice_alone_is_told_from_one_that_does_not_fit() -> None:
    for wanted, alone in (({"Sluice": "0"}, True), ({"Sluice": "0", "pyspark": "1.0"}, False)):
        with pytest.raises(WorkerVersionMismatch) as caught:
            check_worker(wanted)
        assert is_other_sluice(f"{caught.value} (in a Spark worker)") is alone
