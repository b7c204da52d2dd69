"""How the processes of a Spark cluster are started."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sluice.cli.spark import command
from sluice.devstack.launch.spark import java_home
from sluice.etl.spark.launch import (
    ConnectServer,
    ExecutorPlaceError,
    ListenAddress,
    WorkerResources,
    build_executor_command,
    build_master_command,
    build_worker_command,
    with_authentication,
)

HERE = ListenAddress("here", 7077, 8080)


def confs(server: ConnectServer) -> dict[str, str]:
    argv = server.command().argv
    return dict(
        word.split("=", 1) for option, word in itertools.pairwise(argv) if option == "--conf"
    )


def test_a_master_that_is_to_survive_its_restart_keeps_what_it_knows(tmp_path: Path) -> None:
    assert (
        f"recoveryDirectory={tmp_path}"
        in build_master_command(HERE, tmp_path).env["SPARK_MASTER_OPTS"]
    )
    assert "recovery" not in build_master_command(HERE).env["SPARK_MASTER_OPTS"]


def test_a_master_takes_no_programs_over_rest() -> None:
    assert (
        "-Dspark.master.rest.enabled=false" in build_master_command(HERE).env["SPARK_MASTER_OPTS"]
    )


def test_no_argument_shows_the_secret_of_a_cluster(tmp_path: Path) -> None:
    room = WorkerResources(3, "2g", tmp_path)
    for made in (
        build_master_command(HERE),
        build_worker_command(HERE, "spark://there:7077", room),
        ConnectServer(HERE, "spark://there:1").command(),
    ):
        guarded = with_authentication(made, "the secret")
        said = [
            *guarded.argv,
            *(text for name, text in guarded.env.items() if name != "_SPARK_AUTH_SECRET"),
        ]
        assert not any("the secret" in text for text in said)
    assert (
        "-Dspark.authenticate=true"
        in with_authentication(build_master_command(HERE), "x").env["SPARK_DAEMON_JAVA_OPTS"]
    )
    (file,) = guarded.fds
    properties = Path(f"/proc/self/fd/{file}").read_text().splitlines()
    os.close(file)
    assert {"spark.authenticate true", "spark.authenticate.secret the secret"} <= set(properties)
    assert f"/proc/self/fd/{file}" in guarded.argv


def test_a_worker_is_told_its_master_and_what_it_offers(tmp_path: Path) -> None:
    made = build_worker_command(HERE, "spark://there:7077", WorkerResources(3, "2g", tmp_path))
    assert made.argv[-1] == "spark://there:7077"
    assert made.argv[made.argv.index("--cores") + 1] == "3"
    assert made.env["SPARK_LOCAL_DIRS"] == str(tmp_path / "local")


def test_a_connect_server_runs_on_any_master_with_the_settings_it_is_given() -> None:
    found = confs(
        ConnectServer(HERE, "yarn", {"spark.driver.memory": "3g", "spark.executor.cores": "2"})
    )
    assert found["spark.master"] == "yarn"
    assert (found["spark.driver.memory"], found["spark.executor.cores"]) == ("3g", "2")
    assert found["spark.sql.session.timeZone"] == "UTC"


def test_a_server_for_whole_tables_leaves_compilers_and_collector_to_java() -> None:
    names = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
    windows, tables = (
        confs(ConnectServer(HERE, "yarn", for_tables=each)) for each in (False, True)
    )
    assert all("-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" in windows[name] for name in names)
    assert not any(name in tables for name in names)
    given = confs(ConnectServer(HERE, "yarn", java_options="-Xss2m", for_tables=True))
    assert {given[name] for name in names} == {"-Xss2m"}


@pytest.mark.parametrize(
    ("master_url", "python"), [("yarn", "python3"), ("local[2]", sys.executable)]
)
def test_workers_elsewhere_have_the_python_of_their_machine(master_url: str, python: str) -> None:
    assert ConnectServer(HERE, master_url).command().env["PYSPARK_PYTHON"] == python
    assert ConnectServer(HERE, master_url, python="/own").command().env["PYSPARK_PYTHON"] == "/own"


def test_the_command_becomes_what_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "sluice.toml"
    config.write_text(
        '[upstream]\npd-urls = "http://pd"\n[relay]\nurl = "s3://b/r"\n[downstream]\nhost ='
        ' "db"\n[spark]\nmaster = "spark://m:7077"\npython ='
        ' "/opt/python"\n[spark.conf]\nspark.executor.memory = "2g"\n'
    )
    became = []
    monkeypatch.setattr(os, "execve", lambda path, argv, env: became.append((argv, env)))
    monkeypatch.delenv("SPARK_MASTER", raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    arguments = ["connect", "--config", str(config), "--host", "h", "--conf", "spark.cores.max=4"]
    assert CliRunner().invoke(command, arguments).exit_code == 0
    (argv, env), *_ = became
    assert {"spark.master=spark://m:7077", "spark.executor.memory=2g", "spark.cores.max=4"} <= set(
        argv
    )
    assert env["PYSPARK_PYTHON"] == "/opt/python"
    refused = CliRunner().invoke(command, [*arguments, "--conf", "spark.cores.max"])
    assert refused.exit_code == 2
    assert "KEY=VALUE expected" in refused.output


@pytest.mark.slow
def test_an_executor_of_a_pod_is_started_by_what_its_driver_says_in_variables() -> None:
    environment = {
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:1", "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "2", "SPARK_EXECUTOR_MEMORY": "200m",
        "SPARK_APPLICATION_ID": "spark-7", "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_RESOURCE_PROFILE_ID": "0", "SPARK_EXECUTOR_POD_NAME": "sluice-exec-3",
        "SPARK_CONF_DIR": "/opt/spark/conf", "JAVA_HOME": str(java_home()),
        **{f"SPARK_JAVA_OPT_{n}": f"-Dspark.test.option{n}=1" for n in range(11)},
        "SPARK_JAVA_OPT_11": "-Dspark.rpc.numRetries=1",
    }  # fmt: skip
    command = build_executor_command(environment)
    words = list(command.argv)
    assert words[1:12] == [f"-Dspark.test.option{n}=1" for n in range(11)]
    assert words[words.index("-cp") + 1].startswith("/opt/spark/conf:")
    done = subprocess.run(
        words, env={**os.environ, **environment, **command.env}, capture_output=True, text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode and "127.0.0.1:1" in done.stderr and "Unrecognized" not in done.stderr
    del environment["SPARK_DRIVER_URL"]
    with pytest.raises(ExecutorPlaceError, match="SPARK_DRIVER_URL"):
        build_executor_command(environment)
