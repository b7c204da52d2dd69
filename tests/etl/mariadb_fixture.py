"""A private MariaDB for tests.

Import `mariadb` (one server a session) and `session` (an empty server's session) by name.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from sluice.etl.changes.dialect import Dialect
from sluice.etl.downstream import MySQLSession
from sluice.etl.settings import Downstream
from tests.ports import free_port

MARIADB = Dialect.from_version("10.11.0-MariaDB")
"""For tests that need no server."""
AS_ROOT = ("--user=root",) if os.geteuid() == 0 else ()
"""MariaDB's programs refuse to run as root unless they are given its name, and refuse the name to
anybody else.
"""
_KEEP = {"mysql", "information_schema", "performance_schema", "sys", "metrics_schema"}
_SERVERS = Path(__file__).parents[2] / "docs" / "reference" / "servers.md"


def documented_grants() -> list[str]:
    """Return the statements of docs/reference/servers.md for operators, for `sluice` and all
    databases of the tests.
    """
    text = _SERVERS.read_text(encoding="utf-8")
    statements = re.findall(r"^    (GRANT [^;]* TO sluice);", text, re.MULTILINE)
    assert len(statements) == 2
    return [" ".join(statement.split()).replace("`shop`.*", "*.*") for statement in statements]


class MariaDBServer:
    """mariadbd as a child process with its own data directory, on a free loopback port.

    `root` needs no password.

    What replication and its jobs do there they do as `sluice`, who has exactly the rights that the
    documents ask for.
    """

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self._options = options
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        # Its own: a server that starts removes what looks like temporary tables, those of a
        # neighbour too.
        self._scratch = directory / "tmp"
        self._scratch.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                "mariadb-install-db",
                "--no-defaults",
                f"--datadir={directory}/data",
                f"--tmpdir={self._scratch}",
                "--skip-test-db",
                *AS_ROOT,
                "--auth-root-authentication-method=normal",
                "--skip-name-resolve",
                "--force",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=120,
        )

    @property
    def downstream(self) -> Downstream:
        return Downstream(host="127.0.0.1", port=self.port, user="sluice")

    @property
    def dialect(self) -> Dialect:
        """What the server is and can do."""
        with self.connect() as connection:
            return Dialect.from_version(str(connection.get_server_info()))  # type: ignore[no-untyped-call]

    def start(self) -> None:
        if self.port:  # its users know it
            self._start()
            return
        self.port = free_port()
        self._start()

    def _start(self) -> None:
        log = open(self.directory / "log", "ab")  # noqa: SIM115 - owned by the child
        self._process = subprocess.Popen(
            [
                shutil.which("mariadbd") or "/usr/sbin/mariadbd",
                "--no-defaults",
                f"--datadir={self.directory}/data",
                f"--tmpdir={self._scratch}",
                f"--socket={self.directory}/s",
                f"--port={self.port}",
                "--bind-address=127.0.0.1",
                "--skip-name-resolve",
                *AS_ROOT,
                f"--pid-file={self.directory}/pid",
                "--innodb-buffer-pool-size=64M",
                "--innodb-log-file-size=64M",
                # What it has written outlives its kill -9 without waiting for the disk.
                "--innodb-flush-method=nosync",
                "--debug-no-sync",
                *self._options,
            ],
            stdout=log,
            stderr=log,
            env={**os.environ, "LC_ALL": "C"},
        )
        log.close()
        end = time.monotonic() + 60
        while True:
            try:
                with self.connect() as connection, connection.cursor() as cursor:
                    cursor.execute("SELECT @@pid_file")
                    if cursor.fetchall() != ((f"{self.directory}/pid",),):
                        raise RuntimeError(f"on port {self.port} runs another server")
                    cursor.execute("CREATE USER IF NOT EXISTS sluice")
                    for grant in documented_grants():
                        cursor.execute(grant)
                return
            except pymysql.err.OperationalError:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError((self.directory / "log").read_text()[-2000:]) from None
                time.sleep(0.05)

    def kill(self) -> None:
        """kill -9."""
        assert self._process
        self._process.kill()
        self._process.wait()

    def connect(self, **options: object) -> pymysql.connections.Connection:
        # Without a TLS context, which PyMySQL otherwise makes for each: 20 ms of CPU, and on MySQL
        # a handshake. Tests connect thousands of times.
        options.setdefault("ssl_disabled", True)
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            charset="utf8mb4",
            autocommit=True,
            **options,
        )  # type: ignore[arg-type]

    def empty(self) -> None:
        """Drop every database that a test made.

        Sessions that one left open are ended: they may hold locks.
        """
        connection = self.connect()
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT ID FROM information_schema.PROCESSLIST"
                " WHERE USER IN ('root', 'sluice') AND ID <> CONNECTION_ID()"
            )
            for (number,) in cursor.fetchall():
                with contextlib.suppress(pymysql.err.MySQLError):  # it has just ended
                    cursor.execute(f"KILL {number}")
            cursor.execute("SHOW DATABASES")
            for (name,) in cursor.fetchall():
                if name.lower() not in _KEEP:
                    cursor.execute("DROP DATABASE `" + name.replace("`", "``") + "`")
        connection.close()


class GivenServer(MariaDBServer):
    """A server of `--downstream-server`, in place of one that the tests start: MariaDB, MySQL or
    TiDB on a loopback port, where `root` needs no password. It is emptied again and again, so it
    must hold nothing when the tests begin.
    """

    def __init__(self, port: int) -> None:
        self.port = port

    def start(self) -> None:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW DATABASES")
            if held := {str(name).lower() for (name,) in cursor.fetchall()} - _KEEP - {"test"}:
                raise pytest.UsageError(
                    "--downstream-server: the tests drop every database of the server at"
                    f" 127.0.0.1:{self.port}, and it holds {', '.join(sorted(held))}: give them one"
                    " that is empty"
                )
            cursor.execute("CREATE USER IF NOT EXISTS sluice")
            for grant in documented_grants():
                cursor.execute(grant)

    def kill(self) -> None:
        pytest.skip("a server of --downstream-server isn't killed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--downstream-server",
        type=int,
        metavar="PORT",
        help=(
            "Use the empty server at 127.0.0.1:PORT (root, no password) as the downstream, in place"
            " of a MariaDB that the tests start. Everything in it is dropped. Tests that use none"
            " are left out."
        ),
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--downstream-server") is None:
        return
    left_out = [item for item in items if "mariadb_server" not in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture(scope="session")
def mariadb_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MariaDBServer]:
    given = request.config.getoption("--downstream-server")
    server = (
        MariaDBServer(tmp_path_factory.mktemp("mariadb")) if given is None else GivenServer(given)
    )
    server.start()
    yield server
    server.kill() if given is None else server.empty()


@pytest.fixture
def mariadb(mariadb_server: MariaDBServer) -> MariaDBServer:
    """The session's server, emptied."""
    mariadb_server.empty()
    return mariadb_server


@pytest.fixture(scope="session")
def own_mariadb_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MariaDBServer]:
    """A MariaDB that the tests start, also where `--downstream-server` names another server."""
    if request.config.getoption("--downstream-server") is None:
        yield request.getfixturevalue("mariadb_server")
        return
    server = MariaDBServer(tmp_path_factory.mktemp("mariadb"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_mariadb(own_mariadb_server: MariaDBServer) -> MariaDBServer:
    """The same, emptied: for tests whose server pretends to be another product or version."""
    own_mariadb_server.empty()
    return own_mariadb_server


@pytest.fixture
def session(mariadb: MariaDBServer) -> Iterator[MySQLSession]:
    session = MySQLSession(mariadb.downstream)
    session.connect()
    yield session
    session.close()
