"""A story whose databases and tables have names that need quoting: dots, capitals, signs, blanks,
emoji.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sluice.etl.changes.formats.sql_text import quote_name
from sluice.tidb.schema import Schema, Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, table

SCHEMAS = ("my.db", "MyApp", "my")
NAMES = (
    "orders",
    "order-items",
    "100%",
    "a b",
    "db.orders",
    "a`b",
    'say "x"',
    "it's",
    "[x]*",
    "Größe",
)
ROWS = 12


def odd_tables(server: MariaDBServer, folder: Path) -> tuple[Story, list[Table]]:
    """Databases that each have a table of each name, with rows.

    Two of them differ in nothing but the dot's place.
    """
    story = Story(server, folder)
    tables = []
    for number, schema in enumerate(SCHEMAS, 2):
        made = Schema(number, schema, "utf8mb4", "utf8mb4_bin")
        story.statement(
            1, f"CREATE DATABASE {quote_name(schema)}", schemas={number: made}, schema=schema
        )
        for place, name in enumerate(NAMES):
            plain = table(
                100 * number + place, name, "id int", "n varchar(20)", 'say"%s int', primary="id"
            )
            one = replace(plain, schema_name=schema, schema_id=number)
            query = (
                f'CREATE TABLE {quote_name(name)} (`id` INT PRIMARY KEY, `n` VARCHAR(20), `say"%s`'
                " INT)"
            )
            story.statement(3, query, one, schema=schema, name=name)
            story.insert(
                one, *({"id": n, "n": f"{schema} {name} {n}", 'say"%s': place} for n in range(ROWS))
            )
            tables.append(one)
    return story, tables
