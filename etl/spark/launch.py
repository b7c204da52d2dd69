"""Start the processes of a Spark cluster from the installed pyspark.

They are a standalone master, its workers, and a Spark Connect server on any master. Each is one
process in the foreground, with all that it needs in its command line and environment: for a
container, a systemd unit, or a test.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from sluice.errors import RequestError

_DAEMON_MEMORY = "256m"
_FEW_THREADS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVM plans and hands over small jobs, and Python does the work: its optimising compiler takes
a core for minutes.
"""


_NO_REST = "-Dspark.master.rest.enabled=false"
"""The REST port takes programs from any caller that reaches it, despite `spark.authenticate`."""
SECRET_VARIABLE = "SPARK_AUTHENTICATE_SECRET"  # noqa: S105 (its name)
"""The secret that master, workers and drivers of a standalone cluster share; without it they trust
every caller.
"""
_SECRET_KEY = "spark.authenticate.secret"  # noqa: S105 (its name)


class SparkMissingError(RequestError):
    """pyspark isn't installed, or without Spark's jars."""

    hint = "pip install pyspark[connect]==4.3.0 (pyspark-client alone has no server)"


class ExecutorPlaceError(RequestError):
    """The environment isn't that of an executor's pod."""

    hint = "a Spark driver on Kubernetes starts this, by the command of its pods' template"


_JAVA_OPTION = "SPARK_JAVA_OPT_"
_EXECUTOR_FLAGS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
"""The executor's arguments, by the variables of its pod."""


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """A launch command; `env` comes on top of the process's environment.

    It holds a secret only after `with_authentication`. `fds` are open files of this process that it
    inherits.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    fds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A process's address: the host by which others reach it, and its port."""

    host: str
    port: int
    web_port: int = 0
    """The port of its pages; 0 for any."""


def spark_home() -> Path:
    """Return the folder of the installed pyspark, which holds Spark's jars.

    Raises SparkMissingError.
    """
    spec = find_spec("pyspark")
    if spec is None or not spec.origin:
        raise SparkMissingError("pyspark is not installed")
    # one name for it, whichever way leads there: archived classes go by it
    home = Path(spec.origin).parent.resolve()
    if not (home / "jars").is_dir():
        raise SparkMissingError(f"{home} has no jars of Spark's")
    return home


def build_master_command(listening: ListenAddress, recovery: Path | None = None) -> LaunchCommand:
    """Return the command of a standalone master.

    With a folder for `recovery` it knows its workers and applications after a restart; without one
    a restarted master gives a running Connect server no executors any more. Raises
    SparkMissingError.
    """
    options = f"{_FEW_THREADS} {_NO_REST}"
    if recovery is not None:
        options += (
            f" -Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={recovery}"
        )
    words = [
        "--host",
        listening.host,
        "--port",
        str(listening.port),
        "--webui-port",
        str(listening.web_port),
    ]
    return _daemon_command(
        "org.apache.spark.deploy.master.Master", words, {"SPARK_MASTER_OPTS": options}
    )


@dataclass(frozen=True, slots=True)
class WorkerResources:
    """The resources that a worker offers.

    `folder`: for what its executors leave on disk, logs and shuffled rows.
    """

    cores: int
    memory: str
    folder: Path


def build_worker_command(
    listening: ListenAddress, master_url: str, room: WorkerResources
) -> LaunchCommand:
    """Return the command of a standalone worker of the master at `master_url` (``spark://host:port``).

    Raises SparkMissingError.
    """
    words = [
        "--host",
        listening.host,
        "--port",
        str(listening.port),
        "--webui-port",
        str(listening.web_port),
        "--cores",
        str(room.cores),
        "--memory",
        room.memory,
        "--work-dir",
        str(room.folder / "work"),
        master_url,
    ]
    # What ended applications left is removed after a day: shipped packages, and the executors'
    # logs. On SIGPWR it takes no more tasks, and its executors end when theirs are over.
    options = (
        f"{_FEW_THREADS} -Dspark.worker.cleanup.enabled=true"
        " -Dspark.worker.cleanup.appDataTtl=86400 -Dspark.decommission.enabled=true"
    )
    # It looks for its master every 5 to 15 seconds, as long as it takes. Spark itself would do so
    # six times, then every 30 to 90 seconds, and end after ten more.
    for name in ("initial", "max"):
        options += f" -Dspark.worker.{name}RegistrationRetries=1000000"
    env = {"SPARK_WORKER_OPTS": options, "SPARK_LOCAL_DIRS": str(room.folder / "local")}
    return _daemon_command("org.apache.spark.deploy.worker.Worker", words, env)


@dataclass(frozen=True, slots=True)
class ConnectServer:
    """A Spark Connect server: the driver of one application for all of Sluice's sessions.

    It runs on the master of `build_master_command`.
    """

    listening: ListenAddress
    """The gRPC port. Executors come back to its host."""
    master: str
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark's, on top of those that Sluice needs."""
    python: str = ""
    """The Python of the workers; by default this one where they are of this machine, and
    ``python3`` elsewhere.
    """
    java_options: str = ""
    """Options for its JVM and those of its executors, on top of those that Sluice needs."""
    for_tables: bool = False
    """Whether it only serves work on whole tables, as [spark.batch] names it.

    Its JVMs shuffle and sort: they have Java's own compilers and collector.
    """

    @property
    def is_local(self) -> bool:
        """Return whether its workers are processes of this machine."""
        return self.master.startswith("local")

    @property
    def settings(self) -> dict[str, str]:
        """Return all settings that it is started with."""
        java = " ".join(
            each for each in ("" if self.for_tables else _FEW_THREADS, self.java_options) if each
        )
        found = {
            "spark.master": self.master,
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": java,
            "spark.executor.extraJavaOptions": java,
            "spark.driver.host": self.listening.host,
            "spark.connect.grpc.binding.port": str(self.listening.port),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            # Rows of an executor that died are asked for again three times. An executor that lives
            # accepts connections within a second; five, as usual, would be 15 s lost.
            "spark.shuffle.io.retryWait": "1s",
            # With dynamic allocation an executor that holds shuffled rows of jobs that are over
            # would otherwise be kept until the driver's next large collection.
            "spark.dynamicAllocation.shuffleTracking.timeout": "60s",
            # An executor whose host is to end finishes its tasks, and hands shuffled rows on.
            "spark.decommission.enabled": "true",
            "spark.storage.decommission.enabled": "true",
            # A worker's first input over TCP is held up by 40 ms.
            "spark.python.unix.domain.socket.enabled": "true",
        }
        return {key: value for key, value in found.items() if value} | dict(self.conf)

    def command(self) -> LaunchCommand:
        """Return the command that starts it. Raises SparkMissingError."""
        home = spark_home()
        python = self.python or (sys.executable if self.is_local else "python3")
        return LaunchCommand(
            (
                "/bin/bash",
                str(home / "bin" / "spark-submit"),
                "--class",
                "org.apache.spark.sql.connect.service.SparkConnectServer",
                "--name",
                "sluice",
                *(
                    word
                    for key, value in self.settings.items()
                    for word in ("--conf", f"{key}={value}")
                ),
            ),
            {
                "SPARK_HOME": str(home),
                "PYSPARK_PYTHON": python,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            },
        )


def build_executor_command(environment: Mapping[str, str]) -> LaunchCommand:
    """Return the command of an executor in a pod that a driver on Kubernetes has made.

    `environment`: the pod's, in which the driver says what the executor needs. Raises
    SparkMissingError, and ExecutorPlaceError outside of such a pod. Source of the variables and
    arguments: BasicExecutorFeatureStep and the image's entrypoint.sh of Spark.
    """
    home = spark_home()
    options = {
        int(name.removeprefix(_JAVA_OPTION)): value
        for name, value in environment.items()
        if name.startswith(_JAVA_OPTION)
    }
    try:
        memory = environment["SPARK_EXECUTOR_MEMORY"]
        told = [
            word for flag, name in _EXECUTOR_FLAGS.items() for word in (flag, environment[name])
        ]
    except KeyError as error:
        raise ExecutorPlaceError(f"the variable {error.args[0]} is missing") from None
    places = [
        environment.get("SPARK_CONF_DIR", ""), environment.get("SPARK_CLASSPATH", ""),
        str(home / "jars" / "*"),
    ]  # fmt: skip
    java = Path(environment.get("JAVA_HOME", "/usr"), "bin", "java")
    return LaunchCommand(
        (
            *(str(java), *(options[number] for number in sorted(options))),
            *(f"-Xms{memory}", f"-Xmx{memory}", "-cp", ":".join(filter(None, places))),
            *("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend", *told),
        ),
        {"SPARK_HOME": str(home)},
    )


def with_authentication(command: LaunchCommand, secret: str) -> LaunchCommand:
    """Return the command of a master, worker or driver that takes part with `secret` only.

    It encrypts what it sends. No argument shows the secret: daemons have it in a variable, which
    Spark itself passes to executors, and the driver, which accepts no variable, in a file without a
    name. Source: Spark's SecurityManager, "Security" in its documents.
    """
    options = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    if "spark-submit" not in command.argv[1]:
        java = " ".join(f"-D{key}={value}" for key, value in options.items())
        return replace(
            command,
            env={**command.env, "_SPARK_AUTH_SECRET": secret, "SPARK_DAEMON_JAVA_OPTS": java},
        )
    file = os.memfd_create("spark-secret", 0)
    os.write(
        file,
        "".join(
            f"{key} {value}\n" for key, value in {**options, _SECRET_KEY: secret}.items()
        ).encode(),
    )
    bash, submit, *words = command.argv
    given = ("--properties-file", f"/proc/self/fd/{file}", "--load-spark-defaults")
    return replace(command, argv=(bash, submit, *given, *words), fds=(file,))


def _daemon_command(name: str, words: list[str], env: Mapping[str, str]) -> LaunchCommand:
    home = spark_home()
    own = {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY}
    return LaunchCommand(
        ("/bin/bash", str(home / "bin" / "spark-class"), name, *words), own | dict(env)
    )
