"""Damage that `sluice run` does to a replica: of every kind, and only to rows that traffic to come
leaves alone.
"""

import json

from sluice.devstack.damage import Damage, damage

TABLES = {"d.hot": 900, "d.item": 800, "d.small": 4}


def snapshot(folder, rows):
    """A snapshot of d.item with these rows, and a table that is larger and has no key of one
    number.
    """
    here = folder / "snapshots" / "end"
    here.mkdir(parents=True)
    lines = [{"columns": ["name", "id", "v"]}, *([f"n{i}", str(i), v] for i, v in rows)]
    (here / "d.item.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return here


def filled(server, rows):
    connection = server.connect()
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE d")
        cursor.execute("CREATE TABLE d.hot (a VARCHAR(9), b INT, PRIMARY KEY (a, b))")
        cursor.execute("CREATE TABLE d.item (id INT PRIMARY KEY, v DECIMAL(9,2), name VARCHAR(20))")
        cursor.executemany(
            "INSERT INTO d.item VALUES (%s, %s, %s)", [(i, v, f"n{i}") for i, v in rows]
        )
    connection.commit()
    return connection


def test_rows_go_change_and_come_and_none_that_will_be_written_yet(mariadb, tmp_path):
    now = [(i, "1.50") for i in range(800)]
    # even ones will change, those from 700 on go
    end = [(i, "1.50" if i % 2 else "9.00") for i in range(700)]
    with filled(mariadb, now) as connection, connection.cursor() as cursor:
        done = damage(connection, snapshot(tmp_path, end), TABLES)
        assert done == Damage("d.item", 100, 50, 10)
        cursor.execute("SELECT id, v FROM d.item")
        left = {i: str(v) for i, v in cursor.fetchall()}
    gone = {i for i, _ in now} - left.keys()
    changed = {i for i, v in left.items() if v != "1.50"}
    added = left.keys() - {i for i, _ in now}
    assert (len(gone), len(changed), len(added)) == (100, 50, 10)
    assert all(i % 2 and i < 700 for i in gone | changed)
    assert min(added) > 1_000_000


def test_nothing_is_damaged_where_too_few_rows_stay_as_they_are(mariadb, tmp_path):
    now = [(i, "1.50") for i in range(800)]
    with filled(mariadb, now) as connection:
        assert (
            damage(connection, snapshot(tmp_path, [(i, "2.00") for i, _ in now]), {"d.item": 800})
            is None
        )
        with connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM d.item")
            assert cursor.fetchone() == (800,)
