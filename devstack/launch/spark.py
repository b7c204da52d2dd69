"""Run one Spark Connect server from the pyspark wheel, warm for all runs of the pipeline."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

from sluice.devstack.launch.service import (
    LOOPBACK,
    MissingProgram,
    Service,
    StackPaths,
    find_program,
)
from sluice.etl.spark.launch import ConnectServer, ListenAddress

PORTS = ("spark",)
_STANDING_WORKERS = 2
"""Workers beside those of jobs, one a core.

Landing and applying each have a task that mostly waits (`sluice.etl.spark.persistent_worker`).
"""
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""

CLASS_ARCHIVE = Path(sys.prefix) / "share" / "sluice" / "spark-classes.jsa"
"""Spark's classes as Java has them in memory, if `sluice.devstack.launch.class_archive` made it."""


def class_archive_option() -> str:
    """Return the option by which a JVM takes Spark's classes from the archive.

    That is half of the CPU time until its first job is done. "" where there is none. Java goes
    without one that is of other jars or of another Java.
    """
    return (
        f"-XX:SharedArchiveFile={shlex.quote(str(CLASS_ARCHIVE))}" if CLASS_ARCHIVE.exists() else ""
    )


def java_home() -> Path:
    """Return the home of a Java of version 17 or later: JAVA_HOME, else the one on the PATH.

    Raises MissingProgram.
    """
    candidate = os.environ.get("JAVA_HOME")
    java = Path(candidate, "bin", "java") if candidate else None
    if java is None or not java.exists():
        java = Path(find_program("java", "default-jre-headless"))
    _check_version(java)
    return java.resolve().parent.parent


@functools.cache  # it starts a JVM; an error isn't kept
def _check_version(java: Path) -> None:
    done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30)
    version = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if not version or int(version[1]) < 17:
        raise MissingProgram(
            f"{java} is not Java 17 or later: as root: apt-get install default-jre-headless"
        )


def cores() -> int:
    """Return how many cores this process may use.

    A container's limit counts, as it does for the JVM.
    """
    found = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(found, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroups, or "max": no limit
        return found


def spark(site: StackPaths, class_option: str | None = None) -> Service:
    """Return the Spark Connect server, in one process.

    Python workers use this interpreter and see the repository. `class_option` is for the JVM,
    `class_archive_option()` by default.
    """
    port = site.ports["spark"]
    data = site.data("spark")
    scratch = data / "local"
    own = {
        "spark.driver.bindAddress": LOOPBACK,
        "spark.connect.grpc.binding.address": LOOPBACK,
        # its own ports: their secret is made at the start and stays in the process
        "spark.authenticate": "true",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(data / "warehouse"),
    }
    sockets = data / "s"
    # Spark appends a name of about 40 bytes, a socket's path may have 107
    if len(os.fsencode(sockets)) < 60:
        own["spark.python.unix.domain.socket.dir"] = str(sockets)

    def prepare() -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(sockets, ignore_errors=True)
        for folder in (scratch, sockets, data / "conf"):
            folder.mkdir(parents=True, exist_ok=True)
        (data / "conf" / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")

    # Not as SPARK_CONF_DIR: that is on the class path, and no archive is used where a folder on it
    # holds files.
    logging = f"-Dlog4j2.configurationFile={(data / 'conf' / 'log4j2.properties').as_uri()}"
    options = (
        f"{logging} {class_archive_option() if class_option is None else class_option}".rstrip()
    )
    listening = ListenAddress(LOOPBACK, port)
    command = ConnectServer(
        listening, f"local[{cores() + _STANDING_WORKERS}]", own, sys.executable, options
    ).command()
    return Service(
        name="spark",
        argv=command.argv,
        env=dict(command.env)
        | {
            "SPARK_LOCAL_IP": LOOPBACK,
            "JAVA_HOME": str(java_home()),
            "TMPDIR": str(scratch),
        },
        secrets={"SPARK_CONNECT_AUTHENTICATE_TOKEN": site.secret("spark")},
        cwd=data,
        ports={"connect": port},
        probe=lambda: _ask_version(port, site.secret("spark").read_text(encoding="ascii")),
        prepare=prepare,
        data=data,
        start_timeout_s=240,
        summary=f"sc://{LOOPBACK}:{port}",
    )  # fmt: skip


def _ask_version(port: int, token: str) -> None:
    import grpc
    from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

    session = str(uuid.uuid4())
    user = base_pb2.UserContext(user_id="sluice-probe")
    shown = grpc.composite_channel_credentials(
        grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP),
        grpc.access_token_call_credentials(token),
    )
    with grpc.secure_channel(
        f"{LOOPBACK}:{port}", shown, options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        stub = base_pb2_grpc.SparkConnectServiceStub(channel)
        stub.AnalyzePlan(
            base_pb2.AnalyzePlanRequest(
                session_id=session,
                user_context=user,
                spark_version=base_pb2.AnalyzePlanRequest.SparkVersion(),
            ),
            timeout=20,
        )
        stub.ReleaseSession(
            base_pb2.ReleaseSessionRequest(session_id=session, user_context=user), timeout=20
        )
