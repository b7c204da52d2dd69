"""sluice spark: run processes of a Spark cluster in the foreground."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sluice.etl.spark.launch import LaunchCommand

_HOST = click.option(
    "--host",
    envvar="SPARK_LOCAL_HOSTNAME",
    default=socket.gethostname,
    show_default="this machine's name",
    help="The name or address by which others reach it.",
)


def _port(default: int, envvar: str) -> Callable[..., Any]:
    kind = click.IntRange(1, 65535)
    return click.option(
        "--port",
        type=kind,
        envvar=envvar,
        default=default,
        show_default=True,
        help="Port to listen on.",
    )


def _web_port(default: int, envvar: str) -> Callable[..., Any]:
    kind = click.IntRange(1, 65535)
    return click.option(
        "--web-port",
        type=kind,
        envvar=envvar,
        default=default,
        show_default=True,
        help="Port of its web pages.",
    )


def _pem(name: str, text: str) -> Callable[..., Any]:
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    variable = f"SPARK_CONNECT_TLS_{name.upper().replace('-', '_')}"
    return click.option(f"--tls-{name}", type=kind, envvar=variable, help=text)


@click.group("spark")
def command() -> None:
    """Run a process of a Spark cluster in the foreground, from the installed pyspark.

    Spark's own environment variables (SPARK_CONF_DIR, SPARK_LOCAL_IP, …) apply. If master, workers
    and Connect server all have the same SPARK_AUTHENTICATE_SECRET, they refuse callers without it
    and encrypt what they send.
    """


@command.command("master")
@_HOST
@_port(7077, "SPARK_MASTER_PORT")
@_web_port(8080, "SPARK_MASTER_WEBUI_PORT")
@click.option(
    "--recovery", type=click.Path(file_okay=False, path_type=Path),
    help="Folder for its state, so that running sessions survive its restart.",
)  # fmt: skip
def master_command(host: str, port: int, web_port: int, recovery: Path | None) -> None:
    """Run a standalone master."""
    from sluice.etl.spark.launch import ListenAddress, build_master_command

    if recovery is not None:
        recovery.mkdir(parents=True, exist_ok=True)
    _become(build_master_command(ListenAddress(host, port, web_port), recovery))


@command.command("worker")
@click.argument("master", envvar="SPARK_MASTER")
@_HOST
@_port(7078, "SPARK_WORKER_PORT")
@_web_port(8081, "SPARK_WORKER_WEBUI_PORT")
@click.option(
    "--cores",
    type=click.IntRange(1),
    envvar="SPARK_WORKER_CORES",
    help="Number of cores [all of this machine].",
)
@click.option(
    "--memory",
    envvar="SPARK_WORKER_MEMORY",
    default="2g",
    show_default=True,
    help="Memory of its executors' JVMs.",
)
@click.option(
    "--folder", envvar="SPARK_WORKER_DIR", type=click.Path(file_okay=False, path_type=Path),
    default=Path("spark-worker"), show_default=True, help="Folder for files of executors.",
)  # fmt: skip
def worker_command(
    master: str, host: str, port: int, web_port: int, cores: int | None, memory: str, folder: Path
) -> None:
    """Run a standalone worker of a MASTER (spark://host:7077)."""
    from sluice.etl.spark.launch import ListenAddress, WorkerResources, build_worker_command

    room = WorkerResources(cores or os.cpu_count() or 1, memory, folder.absolute())
    for name in ("work", "local"):
        (room.folder / name).mkdir(parents=True, exist_ok=True)
    _become(build_worker_command(ListenAddress(host, port, web_port), master, room))


@command.command("connect")
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False), envvar="SLUICE_CONFIG",
    help="Settings file with [spark] master and [spark.conf].",
)  # fmt: skip
@click.option(
    "--batch",
    is_flag=True,
    help="Run the server of [spark.batch], for whole tables, with Java's own compilers and"
    " collector.",
)
@click.option("--master", envvar="SPARK_MASTER", help="Overrides [spark] master.")
@_HOST
@_port(15002, "SPARK_CONNECT_PORT")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Additional Spark setting.")
@click.option(
    "--python",
    envvar="PYSPARK_PYTHON",
    default="",
    help="The workers' Python [this one on this machine, else python3].",
)
@_pem(
    "cert",
    "Speak TLS at the port, with this certificate; Spark itself is then at the next port of"
    " 127.0.0.1.",
)
@_pem("key", "The certificate's key.")
@_pem(
    "client-ca",
    "Authorities that clients' certificates must come from; without it none is asked for.",
)
def connect_command(
    config: str | None,
    master: str | None,
    *,
    batch: bool,
    host: str,
    port: int,
    conf: tuple[str, ...],
    python: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
) -> None:
    """Run a Spark Connect server on any master, for all of Sluice's sessions.

    A renewed certificate is used from the next connection on. With SPARK_CONNECT_AUTHENTICATE_TOKEN
    set, clients must present that token.
    """
    from sluice.etl.settings import Spark, load_settings
    from sluice.etl.spark.launch import ConnectServer, ListenAddress
    from sluice.etl.spark.tls_proxy import Certificates, serve

    if bool(tls_cert) != bool(tls_key) or (tls_client_ca and not tls_cert):
        raise click.UsageError(
            "--tls-cert and --tls-key go together, and --tls-client-ca with both"
        )
    section = load_settings(config).spark if config else Spark()
    section = section.for_batch() if batch else section
    more = {}
    for one in conf:
        key, equals, value = one.partition("=")
        if not equals:
            raise click.BadParameter(f"{one}: KEY=VALUE expected", param_hint="--conf")
        more[key] = value
    listening = ListenAddress(host, port + 1 if tls_cert else port)
    if tls_cert:
        more["spark.connect.grpc.binding.address"] = "127.0.0.1"
    server = ConnectServer(
        listening,
        master or section.master,
        section.conf_texts | more,
        python or section.python,
        for_tables=batch,
    )
    if tls_cert and tls_key:
        sys.exit(
            serve(
                _with_secret(server.command()),
                port,
                Certificates(tls_cert, tls_key, tls_client_ca),
                listening.port,
            )
        )
    _become(server.command())


@command.command("executor")
def executor_command() -> None:
    """Run an executor in a pod that a driver on Kubernetes (k8s://) has made.

    The driver adds the word `executor` to the command of its pods' template, and says the rest in
    variables.
    """
    from sluice.etl.spark.launch import build_executor_command

    command = build_executor_command(os.environ)
    # the driver hands on the secret in a variable of Spark's own
    os.execve(command.argv[0], list(command.argv), os.environ | dict(command.env))  # noqa: S606


def _with_secret(command: LaunchCommand) -> LaunchCommand:
    """Guard the process with the secret of SPARK_AUTHENTICATE_SECRET, if there is one.

    No child finds it there.
    """
    from sluice.etl.spark.launch import SECRET_VARIABLE, with_authentication

    secret = os.environ.pop(SECRET_VARIABLE, "")
    return with_authentication(command, secret) if secret else command


def _become(command: LaunchCommand) -> None:
    """Replace this process, so that signals reach Spark itself.

    Options for the JVM that the environment has come last, where they count.
    """
    command = _with_secret(command)
    env = dict(os.environ) | dict(command.env)
    for name in command.env.keys() & os.environ.keys():
        if name.endswith("_OPTS"):
            env[name] = f"{command.env[name]} {os.environ[name]}"
    os.execve(command.argv[0], list(command.argv), env)  # noqa: S606 (no shell)
