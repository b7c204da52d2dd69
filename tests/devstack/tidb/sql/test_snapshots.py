"""What the SQL port says at a snapshot's timestamp is what the real TiDB said, to the byte."""

import gzip
import json
import re
from collections import Counter
from urllib.parse import quote

import pymysql
import pytest

from tests.devstack.sql_harness import TEXT, port, quoted

NAMES = ["bootstrap", "ddl", "edges", pytest.param("shop", marks=pytest.mark.slow), "types"]
REFUSED = {"shop.g2", "other.g2"}
"""Tables of the recording `ddl` with a column whose conversion the stand-in doesn't know."""


@pytest.fixture(scope="module", params=NAMES)
def opened(request):
    with port(request.param) as made:
        yield made


def recorded_rows(folder, full):
    path = folder / f"{quote(full, safe='._-')}.jsonl"
    opener = open if path.exists() else gzip.open
    with opener(path if path.exists() else f"{path}.gz", "rt", encoding="utf-8") as lines:
        yield json.loads(next(lines))["columns"]
        for line in lines:
            yield tuple(
                bytes.fromhex(v["hex"])
                if isinstance(v, dict)
                else v
                if v is None
                else str(v).encode()
                for v in json.loads(line)
            )


@pytest.mark.quick_cases("types", "edges", "ddl")
def test_every_table_of_every_snapshot_holds_the_recorded_rows(opened):
    for label in opened.recording.labels:
        folder = opened.recording.directory / "snapshots" / label.name
        with opened.cursor(label.ts, conv=TEXT, use_unicode=False) as cursor:
            for full in label.tables:
                schema, _, table = full.partition(".")
                try:
                    cursor.execute(f"SELECT * FROM {quoted(schema)}.{quoted(table)}")
                except pymysql.OperationalError as refusal:
                    assert full in REFUSED and "a column changed its type" in str(refusal)
                    continue
                columns, *rows = recorded_rows(folder, full)
                assert [d[0] for d in cursor.description] == columns, full
                assert Counter(cursor.fetchall()) == Counter(rows), (label.name, full)


def test_show_create_says_what_tidb_said_at_every_snapshot(opened):
    seen = 0
    for label in opened.recording.labels:
        text = (opened.recording.directory / "snapshots" / label.name / "schema.sql").read_text(
            encoding="utf-8"
        )
        with opened.cursor(label.ts) as cursor:
            for full, create in re.findall(
                r"^-- ([^\n]*)\n(CREATE TABLE.*?);\n(?=\n|$)", text, re.M | re.S
            ):
                schema, _, table = full.partition(".")
                cursor.execute(f"SHOW CREATE TABLE {quoted(schema)}.{quoted(table)}")
                assert cursor.fetchone()[1] == create, label.name
                seen += 1
            for create, name in re.findall(r"^(CREATE DATABASE `(.*?)`.*);$", text, re.M):
                cursor.execute(f"SHOW CREATE DATABASE `{name}`")
                assert cursor.fetchone()[1] == create
    assert seen >= sum(len(label.tables) for label in opened.recording.labels) * 0.9


def test_the_tables_there_are_are_those_of_the_snapshot(opened):
    for label in opened.recording.labels:
        with opened.cursor(label.ts) as cursor:
            cursor.execute(
                "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables"
                " WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('mysql', 'test')"
            )
            assert sorted(name for (name,) in cursor.fetchall()) == sorted(label.tables), label.name
