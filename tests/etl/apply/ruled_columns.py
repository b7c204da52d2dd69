"""Rules of `[[filter.columns]]` that hypothesis draws, and what is downstream by them.

`selected` is the model: what a real server selects of whole rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from sluice.etl.apply import run_apply
from sluice.etl.changes.formats.sql_text import literal
from sluice.etl.settings import Relay, Settings, Upstream
from sluice.etl.settings.rules import parse_filter
from sluice.etl.settings.sections import Apply
from sluice.tidb.schema import Column, Table
from tests.etl.apply.drawn_table import DrawnTable, spec_kind
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story

KEPT = ("leave-out", "keep")


def settings_of(story: Story, *some: dict[str, Any], mode: str = "atomic", **more: Any) -> Settings:
    given_rules = [{"tables": ["d.t*"], **rule} for rule in some]
    return Settings(
        Upstream("unused"),
        Relay(story.url),
        story.server.downstream,
        apply=Apply(mode=mode),
        filters=parse_filter({"columns": given_rules} | more.pop("filter", {}))[0],
        **more,
    )


def apply(story: Story, settings: Settings) -> None:
    last = settings.open_relay().last()
    assert last is not None
    run_apply(settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings))


def names(server: MariaDBServer, of: str = "t") -> list[str]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SHOW COLUMNS FROM d.{of}")
        return [str(row[0]) for row in cursor.fetchall()]


@dataclass(frozen=True)
class DrawnRule:
    """A rule of `[[filter.columns]]`: as settings have it, and what it makes of columns."""

    raw: dict[str, Any]
    left_out: frozenset[str]
    renamed: dict[str, str]

    @property
    def takes_any_name(self) -> bool:
        """Whether a column that gets another name upstream stays a column that is kept."""
        return not self.left_out and "keep" not in self.raw

    def columns(self, of: Table) -> dict[str, str]:
        """The columns' names downstream, in order, by the upstream's."""
        return {
            c.name: self.renamed.get(c.name, c.name)
            for c in of.columns
            if c.name not in self.left_out
        }


def drawn_rule(data: st.DataObject, *, renames: bool) -> DrawnRule:
    """A rule that leaves columns out, keeps some, or else gives some other names."""
    all_names = [*"abcde", *(f"x{n}" for n in range(3, 12))]
    some = data.draw(st.lists(st.sampled_from(all_names), min_size=1, unique=True))
    raw: dict[str, Any] = {}
    match data.draw(st.sampled_from(["leave-out", "keep", "all"] if renames else KEPT)):
        case "leave-out":
            raw, left_out = {"leave-out": [n.upper() for n in some]}, set(some)
        case "keep":
            raw, left_out = {"keep": ["id", *some]}, set(all_names) - set(some)
        case _:
            left_out = set()
    if not renames or len(left_out) == len(all_names):
        return DrawnRule(raw, frozenset(left_out), {})
    if not left_out and data.draw(st.booleans()):
        renamed = {"a": "b", "b": "a"}
    else:
        stay = [n for n in all_names if n not in left_out]
        renamed = {n: f"R `{n}" for n in data.draw(st.lists(st.sampled_from(stay), min_size=1))}
    raw |= {"rename": {old.upper(): new for old, new in renamed.items()}}
    return DrawnRule(raw, frozenset(left_out), renamed)


def sql_type(column: Column) -> str:
    kind = spec_kind(column)
    sql = {"varchar": "varchar(9)", "decimal": "decimal(10,2)", "enum": "enum('x','y')"}
    return sql.get(kind, kind)


def selected(server: MariaDBServer, upstream: DrawnTable, kept: list[str]) -> list[Any]:
    """Select the kept columns from a table with whole rows."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS model")
        cursor.execute("DROP TABLE IF EXISTS model.t")
        columns = upstream.table.columns
        specs = ", ".join(f"{c.name} {sql_type(c)}" for c in columns)
        cursor.execute(f"CREATE TABLE model.t ({specs}) CHARSET utf8mb4 COLLATE utf8mb4_bin")
        for row in upstream.rows.values():
            values = ", ".join(literal(row[c.name]) for c in columns)
            cursor.execute(f"INSERT INTO model.t VALUES ({values})")
        cursor.execute(f"SELECT {', '.join(kept)} FROM model.t")
        return sorted(cursor.fetchall(), key=repr)
