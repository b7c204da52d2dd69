"""Two tables that have rows, are emptied by TRUNCATE TABLE, and have others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sluice.tidb.ddl_actions import Action
from tests.etl.downstream.sinks.told_topics import story_of
from tests.etl.story import Story, table

ORDERS = table(11, "orders", "id int", "v int", primary="id")
ITEMS = table(12, "items", "id int", "v int", primary="id")
BEFORE = [{"id": n, "v": n} for n in range(8)]
BEHIND = [{"id": n, "v": -n} for n in range(4, 10)]
"""The rows behind TRUNCATE TABLE, some with the keys of rows before it."""


def emptied_tables(folder: Path) -> Story:
    """Return the story of `ORDERS` and `ITEMS`."""
    story = story_of(folder)
    for each in (ORDERS, ITEMS):
        story.create(each, f"CREATE TABLE {each.name} (...)")
        story.insert(each, *map(dict, BEFORE))
    for each in (ORDERS, ITEMS):
        emptied = replace(each, id=each.id + 10)
        story.statement(Action.TRUNCATE_TABLE, f"TRUNCATE TABLE {each.name}", each.id, emptied)
        story.insert(emptied, *map(dict, BEHIND))
    return story
