"""MariaDB: the downstream, with a data directory of its own.

Nothing is read from the system's configuration.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pymysql

from sluice.devstack.launch.service import (
    LOOPBACK,
    Service,
    StackPaths,
    base_environment,
    find_program,
)

PORTS = ("mariadb",)
USER = "root"
_OWN_SCHEMAS = {"information_schema", "mysql", "performance_schema", "sys"}
# bytes that a Unix socket's path may have, a few less than the kernel's 107
_MAX_SOCKET_PATH_CHARS = 100


def socket_path(site: StackPaths) -> Path:
    """Return the path of MariaDB's Unix socket.

    It is in the state folder, or in the temporary folder if the path would be too long for a
    socket.
    """
    path = site.data("mariadb") / "mariadb.sock"
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH_CHARS:
        path = (
            Path(tempfile.gettempdir())
            / f"sluice-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.sock"
        )
    return path


def client_file(site: StackPaths) -> Path:
    """Return the option file of `mariadb --defaults-file=…` that has address, user and password."""
    return site.home / "mariadb.cnf"


def mariadb(site: StackPaths) -> Service:
    """Return the MariaDB server: on loopback and its own socket only, its root with a password.

    Durability settings stay at MariaDB's defaults. Started by root it runs as the user "nobody",
    unless that user can't enter the folders above the data.
    """
    data = site.data("mariadb") / "data"
    port = site.ports["mariadb"]
    account = _account(site.data("mariadb")) if os.geteuid() == 0 else None
    as_root = (f"--user={account.pw_name if account else 'root'}",) if os.geteuid() == 0 else ()

    def prepare() -> None:
        scratch, files = site.data("mariadb") / "tmp", site.data("mariadb") / "files"
        for folder in (scratch, files):
            folder.mkdir(parents=True, exist_ok=True)
        _write(site.data("mariadb") / "init.sql", _accounts(_password(site)))
        _write(client_file(site), _client_options(site, port))
        with contextlib.suppress(FileNotFoundError):
            socket_path(site).unlink()
        if (data / "mysql").is_dir():
            _hand_over(site.data("mariadb"), account)
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
            *(("--user=root",) if as_root else ()),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, env=base_environment(), timeout=120
        )
        if done.returncode:
            raise RuntimeError(
                f"mariadb-install-db failed: {(done.stdout + done.stderr).strip()[-2000:]}"
            )
        draft.rename(data)
        _hand_over(site.data("mariadb"), account)

    def probe() -> None:
        with contextlib.closing(connect(site)) as database, database.cursor() as cursor:
            cursor.execute("SELECT 1")

    return Service(
        name="mariadb",
        argv=(
            find_program("mariadbd", "mariadb-server-core"),
            "--no-defaults",
            *as_root,
            f"--datadir={data}",
            f"--socket={socket_path(site)}",
            f"--pid-file={site.data('mariadb') / 'mariadbd.pid'}",
            f"--tmpdir={site.data('mariadb') / 'tmp'}",
            f"--init-file={site.data('mariadb') / 'init.sql'}",
            f"--secure-file-priv={site.data('mariadb') / 'files'}",
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
        summary=f"mariadb --defaults-file={client_file(site)}",
    )


def _account(data: Path) -> pwd.struct_passwd | None:
    """Return the user "nobody", if it can enter the folders above `data`, else None."""
    above = [folder for folder in data.parents if folder.exists()]
    if any(not folder.stat().st_mode & stat.S_IXOTH for folder in above):
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("nobody")
    return None


def _hand_over(folder: Path, account: pwd.struct_passwd | None) -> None:
    """Give the data to the user that the server runs as, and to none else."""
    folder.chmod(0o700)
    if account is None or folder.stat().st_uid == account.pw_uid:
        return
    # the folder last: a hand-over that was cut off begins again
    for path in [*folder.rglob("*"), folder]:
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def _write(path: Path, text: str) -> None:
    """Write a file that only its owner can read; it keeps its owner."""
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text, encoding="utf-8")


def _accounts(password: str) -> str:
    """Return SQL for `--init-file`, a statement a line: one account, with a password.

    In data of an earlier version, too.
    """
    return (
        f"DELETE FROM mysql.global_priv WHERE User NOT IN ('{USER}', 'mariadb.sys');\nDELETE FROM"
        f" mysql.global_priv WHERE User = '{USER}' AND Host NOT IN ('localhost',"
        f" '{LOOPBACK}');\nFLUSH PRIVILEGES;\nALTER USER '{USER}'@'localhost' IDENTIFIED BY"
        f" '{password}';\nALTER USER '{USER}'@'{LOOPBACK}' IDENTIFIED BY '{password}';\n"
    )


def _client_options(site: StackPaths, port: int) -> str:
    return (
        f"[client]\nhost = {LOOPBACK}\nport = {port}\nuser = {USER}\npassword = {_password(site)}\n"
    )


def _password(site: StackPaths) -> str:
    return site.secret("mariadb").read_text(encoding="ascii")


def connect(
    site: StackPaths, timeout_s: int = 2
) -> pymysql.connections.Connection[pymysql.cursors.Cursor]:
    """Connect to the server on loopback, autocommit. Raises pymysql.err.OperationalError."""
    return pymysql.connect(
        host=LOOPBACK,
        port=site.ports["mariadb"],
        user=USER,
        password=_password(site),
        charset="utf8mb4",
        autocommit=True,
        connect_timeout=timeout_s,
        read_timeout=60,
        write_timeout=60,
        init_command="SET time_zone='+00:00'",
    )


def drop_everything(site: StackPaths) -> list[str]:
    """Drop every database that isn't the server's own; returns their names."""
    with contextlib.closing(connect(site)) as database, database.cursor() as cursor:
        cursor.execute("SHOW DATABASES")
        names = [name for (name,) in cursor.fetchall() if name not in _OWN_SCHEMAS]
        cursor.execute("SET foreign_key_checks = 0")
        for name in names:
            cursor.execute(f"DROP DATABASE `{name.replace('`', '``')}`")
    return names
