"""Images of others, as processes: what each does before its server starts, and the server from
Debian's package.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.deploy.as_processes import Service

Paths = dict[str, str]
Prepare = Callable[["Service", list[str], Paths], list[str]]
_SERVERS_USER = {"postgres": "postgres"}
"""Servers that refuse to run as root."""


def user_of(image: str) -> dict[str, Any]:
    """Under which user a server of that image runs, for subprocess."""
    name = _SERVERS_USER.get(image)
    return {"user": name, "group": name, "extra_groups": []} if name and os.geteuid() == 0 else {}


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert found, f"{name} is missing: bin/setup installs it"
    return found


def _secret(service: Service, variable: str) -> str:
    return Path(service.environment[variable]).read_text()


def postgres(service: Service, command: list[str], paths: Paths) -> list[str]:
    """postgres: a cluster whose superuser is POSTGRES_USER, the database POSTGRES_DB.

    All may come with a password.
    """
    programs = max(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name)
    )
    volume = Path(paths["/var/lib/postgresql"])
    data = volume / "data"
    password = service.root / "password"
    password.write_text(_secret(service, "POSTGRES_PASSWORD_FILE"))
    if owner := user_of("postgres").get("user"):
        entry = pwd.getpwnam(owner)
        for path in (volume, password):
            os.chown(path, entry.pw_uid, entry.pw_gid)

    def run(argv: list[str], text: str = "") -> None:
        done = subprocess.run(
            argv,
            input=text,
            cwd=volume,
            capture_output=True,
            text=True,
            timeout=240,
            **user_of("postgres"),
        )
        assert done.returncode == 0, done.stdout + done.stderr

    user, database = service.environment["POSTGRES_USER"], service.environment["POSTGRES_DB"]
    run([
        str(programs / "initdb"), f"--pgdata={data}", f"--username={user}", f"--pwfile={password}",
        "--auth=scram-sha-256", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8",
    ])  # fmt: skip
    run(
        [str(programs / "postgres"), "--single", "-D", str(data), "postgres"],
        f"CREATE DATABASE {database}\n",
    )
    with (data / "pg_hba.conf").open("a") as file:
        file.write("host all all all scram-sha-256\n")
    settings = {
        "listen_addresses": service.address,
        "port": "5432",
        "unix_socket_directories": "",
        "fsync": "off",
    }
    return [
        str(programs / "postgres"), "-D", str(data), *command,
        *(word for key, value in settings.items() for word in ("-c", f"{key}={value}")),
    ]  # fmt: skip


def mariadb(service: Service, command: list[str], paths: Paths) -> list[str]:
    """mariadb: root's password, MARIADB_DATABASE, its owner MARIADB_USER, and what
    /docker-entrypoint-initdb.d says.
    """
    volume = Path(paths["/var/lib/mysql"])
    as_root = ["--user=root"] if os.geteuid() == 0 else []
    here = ["--no-defaults", f"--datadir={volume}/data", f"--tmpdir={service.root}/tmp", *as_root]
    install = [
        _program("mariadb-install-db"),
        *here,
        "--skip-test-db",
        "--auth-root-authentication-method=normal",
    ]
    user, database = service.environment["MARIADB_USER"], service.environment["MARIADB_DATABASE"]
    statements = [
        "FLUSH PRIVILEGES",
        (
            "ALTER USER root@localhost IDENTIFIED BY"
            f" '{_secret(service, 'MARIADB_ROOT_PASSWORD_FILE')}'"
        ),
        f"CREATE DATABASE {database}",
        f"CREATE USER '{user}'@'%' IDENTIFIED BY '{_secret(service, 'MARIADB_PASSWORD_FILE')}'",
        f"GRANT ALL ON {database}.* TO '{user}'@'%'",
    ]
    first = "".join(f"{one};\n" for one in statements)
    first += "".join(
        Path(here).read_text()
        for there, here in paths.items()
        if "/docker-entrypoint-initdb.d/" in there
    )
    for argv, text in ((install, ""), ([_program("mariadbd"), *here, "--bootstrap"], first)):
        done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
    return [
        _program("mariadbd"),
        *here,
        *command,
        f"--socket={service.root}/s",
        f"--pid-file={service.root}/pid",
        "--port=3306",
        f"--bind-address={service.address}",
        "--debug-no-sync",
        "--innodb-flush-method=nosync",
    ]


def rustfs(service: Service, command: list[str], paths: Paths) -> list[str]:
    """rustfs isn't in Debian: another server of the same protocol, which checks signatures by the
    same key.
    """
    service.environment |= {
        "BIND_HOST": service.address,
        "GATEWAY_PORT": service.environment["RUSTFS_ADDRESS"].rpartition(":")[2],
        "SERVICES": "s3",
        "LOG_LEVEL": "WARNING",
        "STATE_DIR": paths["/data"],
        "S3_DATA_DIR": paths["/data"],
        "DOCKER_HOST": f"unix://{service.root}/none",
        "AWS_SECRET_ACCESS_KEY": _secret(service, "RUSTFS_SECRET_KEY_FILE"),
    }
    return [sys.executable, "-m", "ministack", *command]


def server(name: str) -> Prepare:
    """An image whose entry point is a server that Debian has as `name`."""
    return lambda _service, command, _paths: [_program(name), *command]


def etcd(_service: Service, command: list[str], _paths: Paths) -> list[str]:
    """etcd's image has no entry point."""
    return [_program(command[0]), *command[1:]]


IMAGES: dict[str, Prepare] = {
    "postgres": postgres,
    "mariadb": mariadb,
    "rustfs": rustfs,
    "prometheus": server("prometheus"),
    "alertmanager": server("prometheus-alertmanager"),
    "etcd": etcd,
}
"""By image: prepares, and gives what to start."""


def _healthcheck_sh(service: Service, argv: list[str]) -> list[str]:
    """MariaDB's script in its image, with --connect and --innodb_initialized."""
    asked = (
        "import pymysql, sys; address, user, password = sys.argv[1:]\nwith"
        " pymysql.connect(host=address, user=user, password=open(password).read()).cursor() as"
        ' cursor:\n    cursor.execute("SELECT 1 FROM information_schema.ENGINES WHERE engine ='
        " 'InnoDB' AND support <> 'NO'\")\n    sys.exit(not cursor.fetchall())"
    )
    assert argv[1:] == ["--connect", "--innodb_initialized"]
    given = service.environment
    return [
        sys.executable,
        "-c",
        asked,
        service.address,
        given["MARIADB_USER"],
        given["MARIADB_PASSWORD_FILE"],
    ]


def _curl(service: Service, argv: list[str]) -> list[str]:
    """rustfs has its health at /health, the server in its place elsewhere."""
    assert argv[-1] == f"http://{service.address}:9000/health"
    asked = f"import socket; socket.create_connection(({service.address!r}, 9000), 5).close()"
    return [sys.executable, "-c", asked]


CHECKS: dict[str, Callable[[Service, list[str]], list[str]]] = {
    "healthcheck.sh": _healthcheck_sh,
    "curl": _curl,
}
"""Programs of checks that are in an image only."""
