"""Measure MariaDB by itself: LOAD DATA LOCAL of rows of sysbench's shape.

It uses one session, with the durability settings that MariaDB starts with.

The rows (a key, a number with an index, 120 and 60 characters of random digits) lie in files
before the time begins, and each file of 25,000 is one statement and one transaction.
`load_insert_*` are new rows, `load_replace_*` the same keys again with other values.
`*_cpu_us_a_row` is the server's CPU time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pymysql

from sluice.bench.limits import Figures, Round
from sluice.devstack import LOOPBACK, Stack

_FILE_ROWS = 25_000
_FILES_A_SECOND = 8
_TABLE = (
    "CREATE TABLE bench_limits.rows_ (id INT PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL, pad"
    " CHAR(60) NOT NULL, KEY k_1 (k)) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
)


@contextmanager
def database(folder: Path) -> Iterator[Round]:
    """Measure a MariaDB in `folder`, started as all benchmarks do.

    Raises StackError.
    """
    stack = Stack(folder / "stack")
    stack.down()
    stack.wipe("mariadb", "logs")
    made: list[tuple[Path, Path]] = []
    try:
        stack.claim()
        stack.up(("mariadb",))
        server = psutil.Process(stack.state().parts["mariadb"].process.pid)
        session = pymysql.connect(
            host=LOOPBACK,
            port=stack.site().ports["mariadb"],
            user="root",
            charset="utf8mb4",
            autocommit=True,
            local_infile=True,
            password=stack.site().secret("mariadb").read_text(),
        )
        with contextlib.closing(session):

            def take(seconds: float) -> Figures:
                while len(made) < max(1, round(seconds * _FILES_A_SECOND)):
                    made.append(_make(folder, len(made)))
                return _loaded(session, server, made)

            yield take
    finally:
        stack.down()
        stack.wipe("mariadb")
        for path in (path for pair in made for path in pair):
            path.unlink()


def _loaded(
    session: pymysql.connections.Connection[pymysql.cursors.Cursor],
    server: psutil.Process,
    files: list[tuple[Path, Path]],
) -> Figures:
    rows = len(files) * _FILE_ROWS
    found: Figures = {}
    with session.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE DATABASE bench_limits")
        cursor.execute(_TABLE)
        for which, (name, word) in enumerate((("insert", ""), ("replace", "REPLACE "))):
            began, before = time.perf_counter(), sum(server.cpu_times()[:2])
            for pair in files:
                cursor.execute(
                    f"LOAD DATA LOCAL INFILE '{pair[which]}' {word}INTO TABLE bench_limits.rows_"
                    " CHARACTER SET utf8mb4"
                )
            took, spent = time.perf_counter() - began, sum(server.cpu_times()[:2]) - before
            cursor.execute("SELECT COUNT(*), SUM(k % 2) FROM bench_limits.rows_")
            ((count, of_replacing),) = cursor.fetchall()
            if (count, of_replacing) != (rows, which * rows):
                raise RuntimeError(
                    f"of {rows} rows MariaDB has {count}, {of_replacing} of them from the second"
                    " load"
                )
            found[f"load_{name}_rows_per_s"] = rows / took
            found[f"load_{name}_cpu_us_a_row"] = spent / rows * 1e6
    return found


def _make(folder: Path, number: int) -> tuple[Path, Path]:
    """Make two files with the same keys and other values.

    `k` is even in the first and odd in the second.
    """
    paths = folder / f"rows-{number}", folder / f"others-{number}"
    rng = np.random.default_rng(number)
    for which, path in enumerate(paths):
        digits = rng.integers(ord("0"), ord("9") + 1, (_FILE_ROWS, 180), dtype=np.uint8)
        numbers = rng.integers(0, 10**6, _FILE_ROWS) * 2 + which
        with path.open("wb") as file:
            for n, (k, row) in enumerate(zip(numbers, digits), number * _FILE_ROWS + 1):
                text = row.tobytes()
                file.write(b"%d\t%d\t%s\t%s\n" % (n, k, text[:120], text[120:]))
    return paths
