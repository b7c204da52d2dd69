"""MariaDB: the downstream, with a data directory of its own and nothing read from the system's configuration."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pymysql

from embedded.launch.part import LOOPBACK, Part, Site, base_environment, find_program

PORTS = ("mariadb",)
USER = "root"
_OWN_SCHEMAS = {"information_schema", "mysql", "performance_schema", "sys"}
_SOCKET_LIMIT = 100  # bytes that a Unix socket's path may have, a few less than the kernel's 107


def socket_path(site: Site) -> Path:
    """MariaDB's Unix socket: in the state folder, or in the temporary folder if the path would be too long for a
    socket.
    """
    path = site.data("mariadb") / "mariadb.sock"
    if len(os.fsencode(path)) > _SOCKET_LIMIT:
        path = Path(tempfile.gettempdir()) / f"sluice-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.sock"
    return path


def mariadb(site: Site) -> Part:
    """The MariaDB server: root without a password, on loopback and its own socket only; durability as MariaDB has it by
    default.
    """
    data = site.data("mariadb") / "data"
    port = site.ports["mariadb"]
    as_root = ("--user=root",) if os.geteuid() == 0 else ()

    def prepare() -> None:
        scratch = site.data("mariadb") / "tmp"
        scratch.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            socket_path(site).unlink()
        if (data / "mysql").is_dir():
            return
        draft = site.data("mariadb") / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        command = [
            find_program("mariadb-install-db", "mariadb-server-core"),
            "--no-defaults",
            f"--datadir={draft}",
            f"--tmpdir={scratch}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
            *as_root,
        ]
        done = subprocess.run(command, capture_output=True, text=True, env=base_environment(), timeout=120)
        if done.returncode:
            raise RuntimeError(f"mariadb-install-db failed: {(done.stdout + done.stderr).strip()[-2000:]}")
        draft.rename(data)

    def probe() -> None:
        with contextlib.closing(connect(port)) as database, database.cursor() as cursor:
            cursor.execute("SELECT 1")

    return Part(
        name="mariadb",
        argv=(
            find_program("mariadbd", "mariadb-server-core"),
            "--no-defaults",
            *as_root,
            f"--datadir={data}",
            f"--socket={socket_path(site)}",
            f"--pid-file={site.data('mariadb') / 'mariadbd.pid'}",
            f"--tmpdir={site.data('mariadb') / 'tmp'}",
            f"--port={port}",
            f"--bind-address={LOOPBACK}",
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            "--collation-server=utf8mb4_bin",
            "--max-allowed-packet=1G",
            "--innodb-buffer-pool-size=512M",
            "--table-open-cache=16000",
            "--table-definition-cache=16000",
            "--log-warnings=1",
        ),
        ports={"mysql": port},
        probe=probe,
        prepare=prepare,
        data=site.data("mariadb"),
        summary=f"{LOOPBACK}:{port} user {USER}, no password",
    )


def connect(port: int, timeout_s: int = 2) -> pymysql.connections.Connection[pymysql.cursors.Cursor]:
    """A connection to the server on loopback, autocommit. Raises pymysql.err.OperationalError."""
    return pymysql.connect(
        host=LOOPBACK, port=port, user=USER, charset="utf8mb4", autocommit=True,
        connect_timeout=timeout_s, read_timeout=60, write_timeout=60, init_command="SET time_zone='+00:00'",
    )  # fmt: skip


def drop_everything(port: int) -> list[str]:
    """Drop every database that isn't the server's own; returns their names."""
    with contextlib.closing(connect(port)) as database, database.cursor() as cursor:
        cursor.execute("SHOW DATABASES")
        names = [name for (name,) in cursor.fetchall() if name not in _OWN_SCHEMAS]
        cursor.execute("SET foreign_key_checks = 0")
        for name in names:
            cursor.execute(f"DROP DATABASE `{name.replace('`', '``')}`")
    return names
