"""Somebody else who works on the downstream: reads rows with locks, in tables at random and in any
order, and lets them go after a moment. Applying waits for locks then, and is the victim of
deadlocks.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pymysql

from tests.etl.mariadb_fixture import MariaDBServer
from tests.judge.tables import quoted

_SYSTEM = "'mysql','information_schema','performance_schema','sys'"
_TRANSACTIONS = 20
"""In a session; then it looks again which tables there are."""
_PAUSES_S = (0.0, 0.001, 0.005, 0.02)
_AGAIN_S = 0.05


@contextlib.contextmanager
def neighbour(server: MariaDBServer) -> Iterator[None]:
    """Works until the end of the block."""
    over = threading.Event()
    thread = threading.Thread(target=_work, args=(server, over), name="neighbour", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _work(server: MariaDBServer, over: threading.Event) -> None:
    rng = random.Random()
    while not over.is_set():
        # Tables go meanwhile, and it may be the victim itself.
        with contextlib.suppress(pymysql.err.MySQLError, OSError), server.connect() as connection:
            connection.autocommit(False)
            _session(connection, rng, over)
        over.wait(_AGAIN_S)


def _session(connection: Any, rng: random.Random, over: threading.Event) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        cursor.execute(
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE ="
            f" 'BASE TABLE' AND TABLE_SCHEMA NOT IN ({_SYSTEM})"
        )
        tables = [f"{quoted(schema)}.{quoted(name)}" for schema, name in cursor.fetchall()]
        for _ in range(_TRANSACTIONS if tables else 0):
            if over.is_set():
                return
            for table in rng.sample(tables, min(len(tables), rng.randint(1, 4))):
                cursor.execute(f"SELECT 1 FROM {table} LIMIT {rng.choice((1, 3, 50))} FOR UPDATE")
                time.sleep(rng.choice(_PAUSES_S))
            connection.rollback()
            time.sleep(rng.choice(_PAUSES_S))
