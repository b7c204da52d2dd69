"""`sluice bootstrap` against the stand-in cluster: from an empty database to a replica that keeps
up.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.devstack.stack import Stack
from sluice.etl import load_settings
from sluice.etl.apply import run_apply
from sluice.etl.downstream.ownership import (
    BootstrapPending,
    PipelineIdentity,
    require_bootstrap_done,
)
from sluice.etl.landing import run_land
from sluice.etl.tasks import bootstrap as tasks
from sluice.etl.tasks.job_kinds import begin
from sluice.relay import RelayLog
from sluice.relay.jobs import PAUSE, Jobs, LeaseLostError, NotDoneError
from sluice.tidb import EtcdClient, Registry
from tests.cli.typed import ROOT, started, typed
from tests.etl.copy.copying import RECORDING
from tests.etl.copy.small_dump import small_dump
from tests.etl.filled_pumps import fill
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import committed
from tests.etl.snapshots import differences

POSITION = 470629588824227844

Sluice = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stand-in cluster with a pump that has the whole recording."""
    stack = Stack(tmp_path_factory.mktemp("up"))
    try:
        fill(stack, RECORDING, ["pump-1"])
        yield stack
    finally:
        stack.down()


@pytest.fixture
def pd_url(upstream: Stack) -> str:
    return f"http://127.0.0.1:{upstream.site().ports['cluster']}"


@pytest.fixture
def config(pd_url: str, spark_remote: str, mariadb: MariaDBServer, tmp_path: Path) -> Path:
    path = tmp_path / "sluice.toml"
    path.write_text(
        f'[upstream]\npd-urls = "{pd_url}"\n[relay]\nurl ='
        f' "{(tmp_path / "relay").as_uri()}"\n[spark]\nremote ='
        f' "{spark_remote}"\n[downstream]\nhost = "127.0.0.1"\nport ='
        f" {mariadb.port}\n[apply]\nworker-count = 2\n"
    )
    return path


@pytest.fixture
def sluice(config: Path) -> Sluice:
    def run(
        *arguments: str, code: int = 0, how: Sluice = typed
    ) -> subprocess.CompletedProcess[str]:
        done = how(*arguments, "--config", str(config), env={"SLUICE_HOME": str(config.parent)})
        assert done.returncode == code, (done.stdout, done.stderr)
        return done

    return run


def databases(server: MariaDBServer) -> set[str]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW DATABASES")
        return {name for (name,) in cursor.fetchall()} - {
            "mysql",
            "information_schema",
            "performance_schema",
            "sys",
        }


@pytest.mark.beyond_ci
@pytest.mark.slow
def test_an_empty_database_becomes_a_replica_that_keeps_up(
    sluice: Sluice, config: Path, pd_url: str, mariadb: MariaDBServer
) -> None:
    dump = str(RECORDING / "dump-sql")
    planned = sluice("bootstrap", "--from", dump, "--plan").stdout
    assert (
        f"position {POSITION}" in planned
        and "copy     bank.account:" in planned
        and "stops" not in planned
    )
    assert databases(mariadb) == set() and not (config.parent / "relay").exists()
    said = sluice("bootstrap", "--from", dump).stdout
    assert (
        "41 tables, 7,989 rows are downstream" in said
        and f"The checkpoint is at {POSITION}" in said
    )
    assert "note     index ex of types.expr is on an expression: left out" in said
    assert differences(RECORDING, "dump_sql", mariadb) == []
    settings = load_settings(config)
    with EtcdClient(pd_url, timeout_s=60) as etcd:
        noted = {drainer.node_id: drainer.max_commit_ts for drainer in Registry(etcd).drainers()}
    assert noted[PipelineIdentity.from_settings(settings).id] == POSITION
    assert "is done: its result lies in" in sluice("bootstrap", "--from", dump, code=1).stderr
    end = committed(RECORDING)[-1][0]
    run_land(settings, until_ts=end, run_seconds=120)
    applied = run_apply(settings, until_ts=end, run_seconds=120, prepare=local_preparer(settings))
    assert applied.checkpoint >= end
    assert differences(RECORDING, "z_end", mariadb) == []


@pytest.mark.slow
def test_what_hinders_a_bootstrap_is_all_said_before_anything_is_written(
    sluice: Sluice, mariadb: MariaDBServer
) -> None:
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE bank")
        cursor.execute("CREATE TABLE bank.account (id INT)")
    refused = sluice("bootstrap", "--from", str(RECORDING / "dump-csv-plain"), code=1).stderr
    assert "isn't empty: bank.account" in refused and "--into" in refused
    assert "doesn't hold types.ai" in refused and "replicate-do-db" in refused
    assert databases(mariadb) == {"bank"}


@pytest.mark.beyond_ci
@pytest.mark.slow
def test_a_pump_that_is_down_is_a_note_of_the_plan_and_is_waited_for_by_the_copy(
    sluice: Sluice, config: Path, upstream: Stack, mariadb: MariaDBServer
) -> None:
    config.write_text(config.read_text() + '[filter]\nreplicate-do-db = ["bank"]\n')
    asked = ("bootstrap", "--from", str(RECORDING / "dump-csv-plain"))
    upstream.stop(["pump-1"])
    try:
        planned = sluice(*asked, "--plan").stdout
        assert (
            "note     whether the pumps have what was committed since" in planned
            and "stops" not in planned
        )
        said = config.parent / "said"
        with said.open("w") as file, subprocess.Popen(
            [sys.executable, "-m", "sluice.cli", *asked, "--config", str(config)],
            cwd=ROOT, stdout=file, stderr=file,
            env=os.environ | {"SLUICE_HOME": str(config.parent)},
        ) as child:  # fmt: skip
            try:
                while "the copy waits" not in said.read_text() and child.poll() is None:
                    time.sleep(0.05)
                assert child.poll() is None and databases(mariadb) == set(), said.read_text()
                upstream.up(["pump-1"])
                assert child.wait(300) == 0, said.read_text()
            finally:
                child.kill()
    finally:
        upstream.up(["pump-1"])
    assert (
        "can't be asked" in said.read_text()
        and "6 tables, 8,732 rows are downstream" in said.read_text()
    )


@pytest.mark.slow
def test_a_damaged_file_is_named_and_the_same_command_goes_on_once_it_is_whole(
    sluice: Sluice, config: Path, mariadb: MariaDBServer, tmp_path: Path
) -> None:
    config.write_text(config.read_text() + '[filter]\nreplicate-do-db = ["bank"]\n')
    dump = tmp_path / "dump"
    shutil.copytree(RECORDING / "dump-csv-plain", dump)
    file = dump / "bank.parts.000000000.csv"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"|+|p7\r\n", b"p7\r\n", 1))
    offset = whole.index(b"7|+|2024-08-11|+|p7")
    said = sluice("bootstrap", "--from", str(dump), code=4, how=started).stderr
    assert (
        f"bank.parts.000000000.csv, byte {offset}: the row has 2 fields, 3 columns are expected"
        in said
    )
    file.write_bytes(whole)
    assert "6 tables, 8,732 rows are downstream" in sluice("bootstrap", "--from", str(dump)).stdout
    found = differences(RECORDING, "dump_csv_plain", mariadb)
    assert [line for line in found if line.startswith("bank.")] == []


@pytest.mark.slow
def test_a_live_tidb_becomes_a_replica_without_a_dump(
    sluice: Sluice, config: Path, upstream: Stack, mariadb: MariaDBServer
) -> None:
    sql = f'[upstream]\nsql-host = "127.0.0.1"\nsql-port = {upstream.site().ports["cluster-sql"]}\n'
    config.write_text(config.read_text().replace("[upstream]\n", sql))
    assert "position" in sluice("bootstrap", "--from", "tidb://", "--plan").stdout
    done = sluice("bootstrap", "--from", "tidb://")
    assert "replication goes on from there" in done.stdout
    assert differences(RECORDING, "z_end", mariadb) == []


@pytest.mark.slow
def test_the_tasks_of_the_dag_share_a_copy_which_is_paused_and_goes_on_with_the_next_run(
    config: Path, mariadb: MariaDBServer, tmp_path: Path
) -> None:
    config.write_text(config.read_text() + '[filter]\nreplicate-do-db = ["bank"]\n')
    settings = load_settings(config)
    dump = small_dump(tmp_path / "dump")
    said = {"source": str(dump), "plan_only": False, "tables": None, "into": None, "tasks": 2} | {
        "csv_separator": None,
        "csv_delimiter": None,
        "csv_line_terminator": None,
        "csv_null_value": "\\N",
        "csv_header": True,
        "escape_backslash": True,
    }
    planned = begin(settings, "bootstrap", said | {"plan_only": True}, "run 1")
    assert planned["job"] is None and "copy     bank.account" in planned["plan"]
    job = begin(settings, "bootstrap", said, "run 1")["job"]
    shares = tasks.prepare(settings, job, 2, "run 1")
    assert tasks.prepare(settings, said, 2, "run 1") == shares, "as after an approval"
    assert shares == [{"job": job, "share": n, "of": 2} for n in (0, 1)]
    relay = RelayLog.open(settings.relay.url)
    with pytest.raises(
        BootstrapPending,
        match=r"bootstrap of all of .*asked for by airflow run 1.* is running, 0 %",
    ):
        require_bootstrap_done(
            relay, PipelineIdentity.from_settings(settings).downstream, lambda: False
        )
    Jobs(relay.storage).get(job).order(PAUSE, "ann")
    assert tasks.copy_share(settings, shares[0], "run 1")["chunks"] == 0
    with pytest.raises(
        NotDoneError,
        match=r"bootstrap is paused, as was ordered.*trigger the DAG with the same",
    ):
        tasks.finish(settings, job, "run 1")
    with pytest.raises(LeaseLostError, match="bootstrap is paused"):
        tasks.copy_share(settings, shares[1], "run 1")
    assert begin(settings, "bootstrap", said, "run 2")["job"] == job
    shares = tasks.prepare(settings, job, 2, "run 2")
    copied = [tasks.copy_share(settings, share, "run 2") for share in reversed(shares)]
    assert copied[0]["rows"] == 8_732  # the second share, then what was left of the first
    assert tasks.finish(settings, job, "run 2")["rows_there"] == 8_732
    found = differences(RECORDING, "dump_csv_plain", mariadb)
    assert [line for line in found if line.startswith("bank.")] == []
    require_bootstrap_done(
        relay, PipelineIdentity.from_settings(settings).downstream, lambda: False
    )
