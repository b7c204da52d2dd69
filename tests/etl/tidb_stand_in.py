"""A TiDB 6.6 as a downstream sees it, in front of a MariaDB: its version and variables, what it
refuses, what it commits.

Every line of what was measured on a real one is a line here: statements that a TiDB refuses never
reach the MariaDB, LOAD DATA commits the open transaction and itself, SELECT ... FOR UPDATE locks in
pessimistic mode only, large transactions are refused. Rows, locks, transactions and the rest of SQL
are MariaDB's. `MYSQL` is a MySQL 8.0 in the same way, by its documentation.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.etl.settings import Downstream
from tests.etl.mariadb_fixture import MariaDBServer

_CLIENT_SSL = 0x0800
_CAPABILITIES_AT = 14
"""Behind the server's version in its greeting: a zero byte, the thread's id, eight bytes of salt,
and a zero byte.
"""
_COM_QUERY = 3
_OK = b"\0\0\0\2\0\0\0"
_TIDBS = {
    "tidb_txn_mode": "",
    "tidb_constraint_check_in_place": "OFF",
    "tidb_constraint_check_in_place_pessimistic": "ON",
    "tidb_batch_insert": "OFF",
    "tidb_batch_delete": "OFF",
    "tidb_batch_commit": "OFF",
    "tidb_disable_txn_auto_retry": "ON",
    "tidb_snapshot": "",
    "tidb_dml_batch_size": "0",
    "tidb_low_resolution_tso": "OFF",
    "tidb_read_staleness": "0",
    "allow_auto_random_explicit_insert": "OFF",
    "tidb_skip_utf8_check": "OFF",
    "tidb_enable_exchange_partition": "ON",
    "tidb_enable_list_partition": "ON",
    "explicit_defaults_for_timestamp": "ON",
}
_MARIADBS = (
    "in_predicate_conversion_threshold",
    "check_constraint_checks",
    "system_versioning_alter_history",
    "idle_transaction_timeout",
    "idle_write_transaction_timeout",
    "idle_readonly_transaction_timeout",
    "max_statement_time",
    "sql_if_exists",
    "character_set_collations",
    "secure_timestamp",
)
_TABLE_IDS = (
    "(SELECT t.TABLE_SCHEMA, t.TABLE_NAME, i.TABLE_ID AS TIDB_TABLE_ID FROM"
    " information_schema.TABLES t LEFT JOIN information_schema.INNODB_SYS_TABLES i ON i.NAME ="
    " CONCAT(t.TABLE_SCHEMA, '/', t.TABLE_NAME)) with_ids"
)
_RUNNING_DDL = (
    "(SELECT 'running' AS STATE, DB AS DB_NAME, 'any' AS JOB_TYPE FROM"
    " information_schema.PROCESSLIST WHERE INFO REGEXP '^ *(ALTER|CREATE|DROP|RENAME|TRUNCATE) '"
    " UNION ALL SELECT 'done', SCHEMA_NAME, 'add column /* subjob */' FROM"
    " information_schema.SCHEMATA) jobs"
)
# (pattern, error code, SQL state, message)
_REFUSED_BY_TIDB = (
    (r"\s*SHOW WARNINGS LIMIT", 1064, "42000", "You have an error in your SQL syntax"),
    (
        r"\s*SET .*TIME_ROUND_FRACTIONAL",
        1105,
        "HY000",
        "Variable 'sql_mode' can't be set to the value of 'TIME_ROUND_FRACTIONAL'",
    ),
    (rf"\s*SET .*\b({'|'.join(_MARIADBS)})\b", 1193, "HY000", "Unknown system variable"),
    (
        r"\s*SET .*explicit_defaults_for_timestamp",
        1238,
        "HY000",
        "Variable 'explicit_defaults_for_timestamp' is a read only variable",
    ),
    (
        r".*information_schema\.INNODB_(SYS_)?TABLES",
        1146,
        "42S02",
        "Table 'information_schema.INNODB_TABLES' doesn't exist",
    ),
    (r".*\bIS_USED_LOCK\b", 1305, "42000", "FUNCTION IS_USED_LOCK does not exist"),
    (
        r"\s*ALTER TABLE .*\bGENERATED ALWAYS AS\b.*\bSTORED\b",
        3106,
        "HY000",
        "'Adding generated stored column through ALTER TABLE' is not supported",
    ),
    (
        r"\s*FLUSH TABLES WITH READ LOCK",
        1105,
        "HY000",
        "FLUSH TABLES WITH READ LOCK is not supported.  Please use @@tidb_snapshot",
    ),
    (
        r"\s*KILL (?!TIDB )",
        1105,
        "HY000",
        "Please use 'KILL TIDB [CONNECTION | QUERY] connectionID' instead",
    ),
)
_REFUSED_BY_MYSQL = (
    (
        r"\s*SET .*TIME_ROUND_FRACTIONAL",
        1231,
        "42000",
        "Variable 'sql_mode' can't be set to the value of 'TIME_ROUND_FRACTIONAL'",
    ),
    (
        rf"\s*SET .*\b({'|'.join(_MARIADBS)}|tx_isolation|tx_read_only|tidb_\w+)\b",
        1193,
        "HY000",
        "Unknown system variable",
    ),
    (
        r".*information_schema\.INNODB_SYS_TABLES",
        1109,
        "42S02",
        "Unknown table 'INNODB_SYS_TABLES' in information_schema",
    ),
    (
        r"\s*LOAD DATA",
        3948,
        "42000",
        "Loading local data is disabled; this must be enabled on both the client and server sides",
    ),
    (r".*\bIGNORED\b|.*uca1400", 1064, "42000", "You have an error in your SQL syntax"),
)


@dataclass(frozen=True)
class Product:
    """What a server calls itself, its own variables, and what it refuses: (pattern, error code, SQL
    state, message).
    """

    version: bytes
    variables: Mapping[str, str]
    refused: Sequence[tuple[str, int, str, str]]


TIDB = Product(b"5.7.25-TiDB-v6.6.0", _TIDBS, _REFUSED_BY_TIDB)
MYSQL = Product(
    b"8.0.36",
    {
        "transaction_isolation": "REPEATABLE-READ",
        "transaction_read_only": "OFF",
        "local_infile": "OFF",
        "information_schema_stats_expiry": "86400",
        "sql_require_primary_key": "OFF",
        "range_optimizer_max_mem_size": "8388608",
        "tx_isolation": "",
        "tx_read_only": "",
    },
    _REFUSED_BY_MYSQL,
)
_NEW_AND_INDEXED = re.compile(r"ADD (?:COLUMN )?`((?:[^`]|``)*)` (?!\()", re.IGNORECASE)
_CHANGES_ROWS = re.compile(rb"\s*(INSERT|REPLACE|UPDATE|DELETE)\b", re.IGNORECASE)


@dataclass
class Seen:
    """What went through, and what is to happen: once `cut` says so of a statement that has been
    executed, before anybody hears of it, every connection is broken off at its next one.
    """

    statements: list[str] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    cut: Callable[[str], bool] = lambda statement: False
    is_cut: bool = False
    transaction_bytes: int = 100 << 20


class TiDBStandIn:
    """Listens on a free loopback port; looks like a MariaDBServer to tests."""

    def __init__(self, server: MariaDBServer, product: Product = TIDB) -> None:
        self._server = server
        self.product = product
        self.seen = Seen()
        self.snapshot_ts: Callable[[str, int], int] | None = None
        """The timestamp of an optimistic transaction, by file and position of MariaDB's binlog."""
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def downstream(self) -> Downstream:
        return replace(self._server.downstream, port=self.port)

    def connect(self, **options: object) -> object:
        """A connection past this, to look at what is there."""
        return self._server.connect(**options)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            client,
            contextlib.suppress(OSError, ConnectionError),
            socket.create_connection(("127.0.0.1", self._server.port)) as server,
        ):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _Session(self, client, server).run()

    def note(self, statement: str) -> None:
        """A statement has come. Raises ConnectionError once everything is cut off."""
        with self._lock:
            if self.seen.is_cut:
                raise ConnectionError
            self.seen.statements.append(statement[:200])

    def executed(self, statement: str) -> None:
        """A statement has been executed, which nobody knows yet.

        Raises ConnectionError when everything is cut off.
        """
        with self._lock:
            self.seen.is_cut = self.seen.is_cut or self.seen.cut(statement)
            if self.seen.is_cut:
                raise ConnectionError


class _Session:
    def __init__(self, stand_in: TiDBStandIn, client: socket.socket, server: socket.socket) -> None:
        self._stand_in = stand_in
        self._client = client
        self._server = server
        self._variables = dict(stand_in.product.variables)
        self._size = 0
        self._after = b""

    def run(self) -> None:
        sequence, greeting = _read(self._server)
        rest = in_clear(greeting)[greeting.index(b"\0", 1) :]
        _write(self._client, sequence, greeting[:1] + self._stand_in.product.version + rest)
        sequence, answer = _read(self._client)
        _write(self._server, sequence, answer)
        while True:
            sequence, packet = _read(self._server)
            _write(self._client, sequence, packet)
            if packet[:1] in (b"\0", b"\xff"):
                break
            sequence, packet = _read(self._client)
            _write(self._server, sequence, packet)
        while True:
            _, command = _read(self._client)
            if command[0] != _COM_QUERY:
                return
            self._query(command[1:])

    def _query(self, raw: bytes) -> None:
        text = raw.decode("utf-8", "replace")
        seen = self._stand_in.seen
        self._stand_in.note(text)
        refusal = self._refusal(text, raw)
        if refusal:
            seen.refused.append((refusal[0], text[:200]))
            _write(
                self._client,
                1,
                b"\xff"
                + struct.pack("<H", refusal[0])
                + b"#"
                + refusal[1].encode()
                + refusal[2].encode(),
            )
            return
        if not self._own(text):
            self._pass_on(raw, text)

    def _refusal(self, text: str, raw: bytes) -> tuple[int, str, str] | None:
        for pattern, code, state, message in self._stand_in.product.refused:
            if re.match(pattern, text, re.IGNORECASE | re.DOTALL):
                return code, state, message
        if self._stand_in.product is not TIDB:
            return None
        if re.match(r"\s*ALTER TABLE ", text, re.IGNORECASE):
            for name in _NEW_AND_INDEXED.findall(text):
                if re.search(
                    rf"ADD (UNIQUE |PRIMARY )?(KEY|INDEX)[^(]*\([^)]*`{re.escape(name)}`",
                    text,
                    re.IGNORECASE,
                ):
                    return 1072, "42000", f"Key column '{name}' doesn't exist in table"
        if re.match(r"\s*(BEGIN|START TRANSACTION|COMMIT|ROLLBACK)", text, re.IGNORECASE):
            self._size = 0
        elif _CHANGES_ROWS.match(raw):
            self._size += len(raw)
            if self._size > self._stand_in.seen.transaction_bytes:
                return 8004, "HY000", f"Transaction is too large, size: {self._size}"
        return None

    def _own(self, text: str) -> bool:
        """What only this answers: True if it has."""
        assignment = re.match(r"\s*SET SESSION (\w+)='?([^']*)'?\s*$", text, re.IGNORECASE)
        if assignment and assignment[1].lower() in self._variables:
            self._variables[assignment[1].lower()] = assignment[2]
            _write(self._client, 1, _OK)
            return True
        return False

    def _pass_on(self, raw: bytes, text: str) -> None:
        pessimistic = self._variables.get("tidb_txn_mode", "pessimistic") == "pessimistic"
        if re.search(r"\bFOR UPDATE\s*$", text) and not pessimistic:
            raw = raw[: raw.rindex(b"FOR UPDATE")]
        if "TIDB_TABLE_ID" in text:
            raw = raw.replace(b"information_schema.TABLES", _TABLE_IDS.encode())
        raw = raw.replace(b"information_schema.DDL_JOBS", _RUNNING_DDL.encode())
        raw = re.sub(rb"^\s*KILL TIDB ", b"KILL ", raw)
        raw = self._optimistic(raw)
        raw = raw.replace(
            b"information_schema.INNODB_TABLES", b"information_schema.INNODB_SYS_TABLES"
        )
        if re.match(r"\s*SHOW SESSION VARIABLES", text):
            own = " UNION ALL ".join(
                f"SELECT '{name}', '{value}'"
                for name, value in self._variables.items()
                if not name.startswith("tx_")
            )
            names = ", ".join(repr(name) for name in (*_MARIADBS, *self._variables))
            raw = (
                "SELECT VARIABLE_NAME, VARIABLE_VALUE FROM information_schema.SESSION_VARIABLES"
                f" WHERE VARIABLE_NAME NOT IN ({names}) UNION ALL {own}"
            ).encode()
        loads = re.match(r"\s*LOAD DATA", text, re.IGNORECASE) is not None
        if loads:  # commits what is open, and itself
            self._silently(b"COMMIT")
        _write(self._server, 0, bytes([_COM_QUERY]) + raw)
        answer = self._answer()
        self._stand_in.executed(text)
        for number, part in answer:
            _write(self._client, number, part)
        if loads:
            self._silently(b"COMMIT")
        if self._after:
            after, self._after = self._after, b""
            self._silently(after)

    def _optimistic(self, raw: bytes) -> bytes:
        """A snapshot that MariaDB's binlog has a place of; writing fails where rows changed."""
        if raw == b"BEGIN OPTIMISTIC":
            self._silently(b"SET SESSION innodb_snapshot_isolation = ON")
            return b"START TRANSACTION WITH CONSISTENT SNAPSHOT"
        if raw == b"SELECT @@tidb_current_ts":
            assert self._stand_in.snapshot_ts is not None
            place = dict(self._ask(b"SHOW STATUS LIKE 'binlog_snapshot_%'"))
            file, position = place["Binlog_snapshot_file"], int(place["Binlog_snapshot_position"])
            return f"SELECT {self._stand_in.snapshot_ts(file, position)}".encode()
        if raw in (b"COMMIT", b"ROLLBACK"):
            self._after = b"SET SESSION innodb_snapshot_isolation = OFF"
        return raw

    def _ask(self, statement: bytes) -> list[tuple[str, ...]]:
        """Rows of short texts, as MariaDB answers a query of this session's own."""
        _write(self._server, 0, bytes([_COM_QUERY]) + statement)
        found = []
        for _, packet in self._answer()[4:-1]:  # behind two columns and what precedes them
            row, at = [], 0
            while at < len(packet):
                row.append(packet[at + 1 : at + 1 + packet[at]].decode())
                at += 1 + packet[at]
            found.append(tuple(row))
        return found

    def _silently(self, statement: bytes) -> None:
        _write(self._server, 0, bytes([_COM_QUERY]) + statement)
        _read(self._server)

    def _answer(self) -> list[tuple[int, bytes]]:
        sequence, packet = _read(self._server)
        if packet[:1] == b"\xfb":
            _write(self._client, sequence, packet)
            while True:
                sequence, data = _read(self._client)
                _write(self._server, sequence, data)
                if not data:
                    break
            sequence, packet = _read(self._server)
        answer = [(sequence, packet)]
        if packet[:1] not in (b"\0", b"\xff"):
            ends = 0
            while ends < 2:
                sequence, packet = _read(self._server)
                answer.append((sequence, packet))
                if packet[:1] == b"\xff":
                    break
                ends += packet[:1] == b"\xfe" and len(packet) < 9
        return answer


def in_clear(greeting: bytes) -> bytes:
    """Return a server's greeting without its offer of TLS, which couldn't be looked into."""
    changed = bytearray(greeting)
    changed[greeting.index(b"\0", 1) + _CAPABILITIES_AT + 1] &= 0xFF & ~(_CLIENT_SSL >> 8)
    return bytes(changed)


def _read(source: socket.socket) -> tuple[int, bytes]:
    """(sequence number, payload) of a packet; those of 16 MiB and more together."""
    payload = b""
    while True:
        head = _exactly(source, 4)
        size = int.from_bytes(head[:3], "little")
        payload += _exactly(source, size)
        if size < 0xFFFFFF:
            return head[3], payload


def _exactly(source: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = source.recv(min(size, 1 << 20))
        if not part:
            raise ConnectionError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write(target: socket.socket, sequence: int, payload: bytes) -> None:
    assert len(payload) < 0xFFFFFF
    target.sendall(len(payload).to_bytes(3, "little") + bytes([sequence]) + payload)
