"""Small steps are sent before those in front of them are answered: what is downstream then, and
what is said of it, is as if each had been waited for.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.bench.far_proxy import FarProxy
from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.steps import DeleteDetail, LoadDetail, Step
from sluice.etl.downstream import (
    MAX_PIPELINED,
    DownstreamError,
    LoadData,
    LoadOutcome,
    MySQLSession,
    Query,
)
from sluice.etl.downstream.sinks.sink import ApplyError
from sluice.etl.downstream.sinks.write_executor import WriteExecutor
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.tidb_stand_in import in_clear
from tests.examples import examples

TABLES = 5
LAYOUT = LoadLayout(("id", "v"))
MANY = 4000
"""Rows, so many that they aren't one statement with values."""


def text(first: int, count: int = MANY) -> bytes:
    """Lines of rows with keys from `first` on."""
    return b"".join(b"%d\t1\n" % (first + n) for n in range(count))


@pytest.fixture
def filled(session: MySQLSession) -> MySQLSession:
    """Tables of which each has the rows 0 to 9, in a transaction."""
    fill(session)
    session.query("BEGIN")
    return session


def fill(session: MySQLSession) -> None:
    """Have each of the tables hold the rows 0 to 9 and no other."""
    session.query("CREATE DATABASE IF NOT EXISTS d")
    for number in range(TABLES):
        session.query(
            f"CREATE TABLE IF NOT EXISTS d.t{number} (id int PRIMARY KEY, v int NOT NULL)"
        )
    for number in range(TABLES):
        session.query(f"DELETE FROM d.t{number}")
        session.query(f"INSERT INTO d.t{number} VALUES {','.join(f'({n},0)' for n in range(10))}")
    session.query("COMMIT")


def load(table: int, rows: dict[int, object], *, replaces: int = 0) -> Step:
    text = "".join(f"{key}\t{value}\n" for key, value in rows.items()).encode()
    return Step(
        LoadDetail(90, layout=LAYOUT, replaces=replaces, keys=("id",)),
        100,
        "d",
        f"t{table}",
        len(rows),
        0,
        text,
    )


def delete(table: int, keys: list[int]) -> Step:
    statement = f"DELETE FROM `d`.`t{table}` WHERE `id` IN ({','.join(map(str, keys))})".encode()
    return Step(DeleteDetail(90), 100, "d", f"t{table}", len(keys), 0, statement)


def rows_of(session: MySQLSession) -> list[list[tuple[int, int]]]:
    return [session.query(f"SELECT id, v FROM d.t{number} ORDER BY id") for number in range(TABLES)]


ONE = st.one_of(
    st.builds(
        load,
        st.integers(0, TABLES - 1),
        st.dictionaries(st.integers(0, 30), st.integers(0, 9), min_size=1, max_size=5),
        replaces=st.integers(0, 5),
    ),
    st.builds(
        delete,
        st.integers(0, TABLES - 1),
        st.lists(st.integers(0, 30), min_size=1, max_size=5, unique=True),
    ),
    st.builds(lambda key: load(0, {key: "no number"}), st.integers(40, 50)),
    st.builds(
        lambda first: load(1, dict.fromkeys(range(first, first + MANY), 1)), st.integers(31, 50)
    ),
)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(ONE, min_size=2, max_size=12), safe=st.booleans())
def test_it_ends_as_if_each_step_had_been_waited_for(
    mariadb: MariaDBServer, steps: list[Step], safe: bool
) -> None:
    """Right and wrong steps: the same rows, or the same error with the same words, and nothing of
    the batch then.
    """
    found = []
    for ahead in (False, True):
        with contextlib.closing(MySQLSession(mariadb.downstream)) as session:
            session.connect()
            session.ahead.is_refused = not ahead
            fill(session)
            session.query("BEGIN")
            said = ""
            try:
                WriteExecutor(session).write_all(steps, safe=safe)
            except ApplyError as error:
                said = str(error)
                session.rollback()
            found.append((said, rows_of(session)))
    assert found[0] == found[1]


def test_hundreds_of_tables_take_a_few_round_trips(
    mariadb: MariaDBServer, session: MySQLSession
) -> None:
    count = 300
    session.query("CREATE DATABASE d")
    for number in range(count):
        session.query(f"CREATE TABLE d.t{number} (id int PRIMARY KEY, v int NOT NULL)")
    with FarProxy(mariadb.port) as proxy:
        far = MySQLSession(replace(mariadb.downstream, port=proxy.port))
        with contextlib.closing(far):
            far.connect()
            before = proxy.turns[0]
            WriteExecutor(far).write_all([load(number, {1: number}) for number in range(count)])
            far.commit()
            used = proxy.turns[0] - before
    assert used <= 12, "six for the rows and the engines, one to commit; TCP may deliver one in two"
    assert all(
        session.query(f"SELECT v FROM d.t{number}") == [(number,)] for number in range(count)
    )


def test_a_table_that_is_missing_is_told_of_as_ever(filled: MySQLSession) -> None:
    with pytest.raises(ApplyError, match=r"table d\.t99, load of 1 row .*doesn't exist"):
        WriteExecutor(filled).write_all([load(0, {20: 1}), load(99, {20: 1}), load(1, {20: 1})])
    assert filled.is_pipelining


def test_a_table_that_is_missing_is_told_of_once_many_rows_go_one_by_one(
    filled: MySQLSession,
) -> None:
    """The server refuses before it asks for the rows, which it takes for a command then, and hangs
    up.
    """
    steps = [load(0, {20: 1}), load(99, dict.fromkeys(range(MANY), 1)), load(1, {20: 1})]
    with pytest.raises(DownstreamError, match=r"t99.*statement by statement") as caught:
        WriteExecutor(filled).write_all(steps)
    assert caught.value.transient
    filled.connect()
    assert rows_of(filled)[0] == [(n, 0) for n in range(10)], "nothing of it is left"
    assert not filled.is_pipelining
    with pytest.raises(ApplyError, match=r"table d\.t99, load of 4,000 rows .*doesn't exist"):
        WriteExecutor(filled).write_all(steps)


def test_rows_are_never_read_as_commands(mariadb: MariaDBServer, filled: MySQLSession) -> None:
    """A LOAD that is refused, and rows that say COM_QUERY, not even through a proxy that numbers
    packets anew.
    """
    filled.commit()
    rows = b"\x03DROP TABLE d.t1 -- \t1\n" * 1000
    with pytest.raises(DownstreamError):
        filled.execute_pipelined([LoadData("d.missing", LAYOUT, rows)])
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        threading.Thread(target=renumbering, args=(server, mariadb.port), daemon=True).start()
        through = MySQLSession(replace(mariadb.downstream, port=server.getsockname()[1]))
        with contextlib.closing(through):
            through.connect()
            with pytest.raises(DownstreamError, match="missing"):
                through.execute_pipelined(
                    [LoadData("d.missing", LAYOUT, rows), b"DELETE FROM d.t0"]
                )
    filled.connect()
    assert rows_of(filled) == [[(n, 0) for n in range(10)]] * TABLES


def renumbering(server: socket.socket, port: int) -> None:
    """A proxy for which every packet of a client that isn't one of the handshake is a command,
    whatever its number.
    """
    client, _ = server.accept()
    real = socket.create_connection(("127.0.0.1", port))
    in_handshake = True

    greeting = real.recv(1 << 16)
    client.sendall(greeting[:4] + in_clear(greeting[4:]))

    def back() -> None:
        with contextlib.suppress(OSError):
            while data := real.recv(1 << 16):
                client.sendall(data)
        client.close()

    threading.Thread(target=back, daemon=True).start()
    with client.makefile("rb") as sent:
        while head := sent.read(4):
            data = sent.read(int.from_bytes(head[:3], "little"))
            in_handshake = in_handshake and head[3] > 0
            real.sendall(head[:3] + (head[3:] if in_handshake else b"\0") + data)
    real.close()


def test_a_statement_that_is_refused_leaves_the_session_usable(filled: MySQLSession) -> None:
    found = filled.execute_pipelined(
        [
            b"INSERT INTO d.t0 VALUES (20, 1)",
            b"INSERT INTO d.t0 VALUES (20, 1)",
            LoadData("d.t1", LAYOUT, b"20\tno number\n"),
            LoadData("d.t1", LAYOUT, text(100) + b"1\tno number\n"),
            LoadData("d.t1", LAYOUT, b"21\t1\n22\t1\n"),
            LoadData("d.t1", LAYOUT, text(100)),
            LoadData("d.t1", LAYOUT, b"21\t1\n23\t1\n", may_replace=False),
            Query("SELECT id FROM d.missing"),
            Query("SELECT COUNT(*) FROM d.t1"),
        ]
    )
    codes = [each.code if isinstance(each, DownstreamError) else each for each in found]
    assert codes == [
        1,
        1062,
        1366,
        1366,
        LoadOutcome(-1, 2, 0, 0),
        LoadOutcome(MANY, 0, 0, 0),
        1062,
        1146,
        [(12 + MANY,)],
    ]
    assert filled.is_pipelining


def test_a_deadlock_among_them_is_what_is_raised(
    mariadb: MariaDBServer, filled: MySQLSession
) -> None:
    """The server has rolled all back then, and executed what came behind in a transaction of its
    own.
    """
    other = MySQLSession(mariadb.downstream)
    with contextlib.closing(other):
        other.connect()
        filled.query("SET SESSION innodb_lock_wait_timeout = 20")
        filled.query("UPDATE d.t0 SET v = 1 WHERE id = 1")
        other.begin()
        for n in range(10):  # the one with more to undo goes on
            other.query(f"UPDATE d.t1 SET v = {n} WHERE id = {n}")
        waiting = threading.Thread(target=lambda: other.query("UPDATE d.t0 SET v = 2 WHERE id = 1"))
        waiting.start()
        with pytest.raises(DownstreamError) as caught:
            WriteExecutor(filled).write_all([load(2, {20: 1}), delete(1, [1]), load(3, {20: 1})])
        assert caught.value.code == 1213
        assert caught.value.transient
        filled.rollback()
        waiting.join(30)
        other.commit()
    assert rows_of(filled)[2:4] == [[(n, 0) for n in range(10)]] * 2
    assert filled.query("SELECT v FROM d.t0 WHERE id = 1") == [(2,)]


def test_a_connection_that_breaks_among_them_ends_in_an_error_that_passes(
    mariadb: MariaDBServer,
) -> None:
    with FarProxy(mariadb.port) as proxy:
        far = MySQLSession(replace(mariadb.downstream, port=proxy.port))
        with contextlib.closing(far):
            far.connect()
            far.query("CREATE DATABASE e")
            far.query("CREATE TABLE e.t (id int PRIMARY KEY, v int)")
            proxy.cut = lambda _: True
            with pytest.raises(DownstreamError) as caught:
                far.execute_pipelined(
                    [LoadData("e.t", LAYOUT, b"1\t1\n"), b"INSERT INTO e.t VALUES (2, 2)"]
                )
            assert caught.value.transient
            assert not far.is_pipelining, (
                "what the server or a proxy makes of it isn't known: from now on one by one"
            )


def test_answers_to_as_many_as_are_sent_at_once_fit_into_the_network(filled: MySQLSession) -> None:
    """Nobody reads them while the statements are written."""
    found = filled.execute_pipelined(
        [LoadData(f"d.t{n % TABLES}", LAYOUT, b"%d\t1\n" % (100 + n)) for n in range(MAX_PIPELINED)]
    )
    assert found == [LoadOutcome(-1, 1, 0, 0)] * MAX_PIPELINED
    found = filled.execute_pipelined(
        [LoadData(f"d.t{n % TABLES}", LAYOUT, text(1000 + n * MANY)) for n in range(MAX_PIPELINED)]
    )
    assert found == [LoadOutcome(MANY, 0, 0, 0)] * MAX_PIPELINED
    names = filled.query_pipelined(
        "SELECT REPEAT('x', 200) FROM d.t0 WHERE id = %s", [(n % 10,) for n in range(MAX_PIPELINED)]
    )
    assert names == [[("x" * 200,)]] * MAX_PIPELINED


@pytest.fixture
def asking(mariadb: MariaDBServer) -> Iterator[int]:
    """The port of a server that passes all on, but names another file than the loaded one."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            client, _ = server.accept()
            real = socket.create_connection(("127.0.0.1", mariadb.port))

            greeting = real.recv(1 << 16)
            client.sendall(greeting[:4] + in_clear(greeting[4:]))

            def back() -> None:
                with contextlib.suppress(OSError):
                    while data := real.recv(1 << 16):
                        at = data.find(b"\xfbsluice-")
                        client.sendall(
                            data if at < 0 else data[: at + 1] + b"/etc/sl" + data[at + 8 :]
                        )
                client.close()

            threading.Thread(target=back, daemon=True).start()
            while data := client.recv(1 << 16):
                real.sendall(data)
            real.close()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def test_a_server_that_asks_for_another_file_is_left(
    mariadb: MariaDBServer, filled: MySQLSession, asking: int
) -> None:
    filled.commit()
    session = MySQLSession(replace(mariadb.downstream, port=asking))
    with contextlib.closing(session):
        session.connect()
        with pytest.raises(DownstreamError, match="a file that was not offered"):
            session.execute_pipelined(
                [LoadData("d.t0", LAYOUT, text(20)), LoadData("d.t1", LAYOUT, text(20))]
            )
