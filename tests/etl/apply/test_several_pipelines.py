"""One relay log feeds several downstreams: what is one pipeline's own is never another's."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl import operate
from sluice.etl.apply import run_apply
from sluice.etl.changes.formats.binlog_file import list_files, read_file
from sluice.etl.settings import Downstream, File, Relay, Settings
from sluice.etl.settings.pipelines import pipelines
from sluice.etl.settings.rules import parse_routes
from sluice.relay import ChunkCancelled, Control, RelayError
from sluice.relay.consumers import Consumers
from tests.etl.apply.test_aligned_chunks import LONG, PLAIN, Scene
from tests.etl.apply.test_apply_random import settings_for
from tests.etl.chunk_model import appoint, deliver
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.snapshots import differences

ROOT = Path(__file__).parents[3]
DDL = RECORDINGS / "ddl"
CONFIG = """
[upstream]
pd-urls = "http://127.0.0.1:1"
[relay]
url = "{url}"
[apply]
max-rows = 100
"""
ONE = '[downstream]\nhost = "127.0.0.1"\nport = {port}\n'
TWO = (
    ONE
    + 'checkpoint-schema = "two_binlog"\nrecycle-schema = "two_recycle"\n'
    + "".join(
        f'[[route]]\nschema-pattern = "{name}"\ntarget-schema = "{name}_two"\n'
        for name in ("shop", "other", "test")
    )
)
FILES = '[downstream]\ntype = "file"\n[file]\ndir = "{folder}/files"\n'


def killed(name: str, batches: int) -> subprocess.Popen[bytes]:
    """Applies until so many batches are through."""
    arguments = [sys.executable, "-m", "tests.etl.apply.applying_pipeline", name, str(batches)]
    return subprocess.Popen(arguments, cwd=ROOT)


@pytest.mark.slow
def test_two_databases_and_files_on_one_relay_log_killed_and_started_again_are_each_as_upstream(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/relay"
    relay = land(DDL, url, 40)
    (folder := tmp_path / "pipelines").mkdir()
    for name, downstream in (("one", ONE), ("two", TWO), ("files", FILES)):
        text = (CONFIG + downstream).format(url=url, port=mariadb.port, folder=tmp_path)
        (folder / f"{name}.toml").write_text(text)
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    monkeypatch.delenv("SLUICE_CONFIG", raising=False)
    found = pipelines()
    assert found.problems() == []

    running = [killed("one", 2), killed("two", 4), killed("files", 1)]
    assert [process.wait(120) for process in running] == [-signal.SIGKILL] * 3
    operate.pause(found["two"].settings, "apply")
    last = relay.last()
    assert last is not None
    for name in ("one", "files"):
        apply_all(found[name].settings, last.hi)
    assert differences(DDL, "f_end", mariadb) == []
    assert written(tmp_path / "files") == written_alone(url, tmp_path / "alone", last.hi)
    assert differences(DDL, "f_end", mariadb, "{schema}_two")

    operate.resume(found["two"].settings, "apply")
    apply_all(found["two"].settings, last.hi)
    assert differences(DDL, "f_end", mariadb, "{schema}_two") == []
    assert differences(DDL, "f_end", mariadb) == []
    assert len(Consumers(relay).positions()) == 3, "retention waits for each"


def apply_all(settings: Settings, until_ts: int) -> None:
    assert run_apply(
        settings, until_ts=until_ts, run_seconds=120, prepare=local_preparer(settings)
    ).checkpoint == until_ts  # fmt: skip


def written(folder: Path) -> list[bytes]:
    return [message for path in list_files(folder) for _, message in read_file(path)]


def written_alone(url: str, folder: Path, until_ts: int) -> list[bytes]:
    """By a pipeline without a neighbour, from a relay log as it were its own."""
    settings = Settings(
        pipelines()["files"].settings.upstream,
        Relay(url, pipeline="alone"),
        Downstream(type="file"),
        file=File(dir=str(folder)),
    )
    apply_all(settings, until_ts)
    Consumers(settings.open_relay()).forget(next(iter(_consumers_of(settings))))
    return written(folder)


def _consumers_of(settings: Settings) -> Iterator[str]:
    from sluice.relay.consumers import consumer_name

    yield consumer_name(settings.downstream_name)


@pytest.fixture
def scene(mariadb: MariaDBServer, tmp_path: Path) -> Scene:
    return Scene(mariadb, tmp_path)


@pytest.fixture
def second(scene: Scene, mariadb: MariaDBServer) -> Settings:
    """Another database, on the same server."""
    settings = settings_for(mariadb, scene.relay.url, 1000)
    downstream = replace(
        settings.downstream, checkpoint_schema="two_binlog", recycle_schema="two_recycle"
    )
    routes = parse_routes([{"schema-pattern": "rnd", "target-schema": "rnd_two"}])
    with scene.connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE rnd_two")
        cursor.execute(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'rnd'"
        )
        for (name,) in cursor.fetchall():
            cursor.execute(f"CREATE TABLE rnd_two.`{name}` LIKE rnd.`{name}`")
    return replace(
        settings,
        relay=Relay(scene.relay.url, pipeline="second"),
        downstream=downstream,
        routes=routes,
    )


@pytest.fixture
def files(scene: Scene, tmp_path: Path) -> Settings:
    return replace(
        scene.settings,
        relay=Relay(scene.relay.url, pipeline="files"),
        downstream=Downstream(type="file"),
        file=File(dir=str(tmp_path / "files")),
    )


def counts(scene: Scene, schema: str) -> dict[str, int]:
    """What a database holds, as checksums."""
    scene.connection.rollback()
    with scene.connection.cursor() as cursor:
        cursor.execute(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s", (schema,)
        )
        found = {}
        for (name,) in cursor.fetchall():
            cursor.execute(f"CHECKSUM TABLE `{schema}`.`{name}`")
            found[name] = cursor.fetchone()[1]
        return found


def test_an_aligned_chunk_is_kept_by_the_pipeline_whose_job_made_it_and_passed_by_the_others(
    scene: Scene, second: Settings, files: Settings
) -> None:
    scene.apply(until_ts=scene.stamps[0])
    scene.wait(LONG)
    asked = appoint(scene.relay, PLAIN, scene.middle)
    apply_all(files, scene.last)
    apply_all(second, scene.last)
    assert scene.relay.aligned_chunks.outcome(asked.at_ts) is None, (
        "neither has voided it, nor waited for it"
    )
    with scene.applying():
        scene.until(scene.at(scene.middle))
        scene.connection.cursor().execute("UPDATE rnd.plain SET v = 99")
        scene.connection.commit()
        deliver(scene.relay, scene.told, PLAIN, asked)
        scene.until(scene.at(scene.last))
    assert scene.right()
    assert counts(scene, "rnd") == counts(scene, "rnd_two")
    assert not isinstance(scene.relay.aligned_chunks.outcome(asked.at_ts), ChunkCancelled)


def test_a_decision_an_order_and_a_refusal_are_of_one_pipeline_alone(
    scene: Scene, second: Settings, files: Settings
) -> None:
    scene.apply(until_ts=scene.stamps[0])  # from now on what lies beside the windows is this one's
    skipped = next(ts for ts, changes in reversed(scene.told.history.transactions) if changes)
    operate.skip_transaction(second, skipped)
    operate.pause(files, "apply")
    files.open_relay().change_control(
        lambda control: replace(control, apply_paused=False, apply_until_ts=scene.middle)
    )
    assert scene.relay.control() == Control() and scene.relay.overrides.list() == []
    assert files.open_relay().control().apply_until_ts == scene.middle
    apply_all(files, scene.middle)
    scene.apply()
    apply_all(second, scene.last)
    assert scene.right()
    assert counts(scene, "rnd") != counts(scene, "rnd_two")
    assert [each.commit_ts for each in second.open_relay().overrides.list()] == [skipped]


def test_who_gets_a_name_later_keeps_what_was_decided_before(scene: Scene) -> None:
    scene.apply(until_ts=scene.middle)
    operate.pause(scene.settings, "apply")
    named = replace(scene.settings, relay=replace(scene.settings.relay, pipeline="shop"))
    assert named.open_relay().control().apply_paused
    operate.resume(named, "apply")
    apply_all(named, scene.last)
    assert scene.right()


def test_a_command_without_a_name_is_refused_where_others_read_the_relay_log(
    scene: Scene, files: Settings
) -> None:
    apply_all(files, scene.last)
    unnamed = replace(files, relay=Relay(scene.relay.url), file=File(dir="/elsewhere"))
    with pytest.raises(RelayError, match="the pipelines files read this relay log"):
        operate.pause(unnamed, "apply")
