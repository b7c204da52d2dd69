"""Masked columns through a broker: readers find masked values, and a clear one is nowhere."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.settings import Kafka
from sluice.tidb.ddl_actions import Action
from sluice.tidb.rows import ROWID_NAME
from tests.etl.changes.messages.readers import READERS
from tests.etl.changes.messages.recorded_messages import frozen, rebuilt
from tests.etl.downstream.sinks.kafka_pipeline import (  # noqa: F401 fixtures
    broker,
    markers,
    merged,
    row_topics,
    spread,
)
from tests.etl.downstream.sinks.kafka_topic import needs_broker
from tests.etl.downstream.sinks.told_topics import apply, format_of, settings_to, story_of
from tests.etl.masking import KEY, SECTION, VARIABLE, masked, shifted
from tests.etl.story import Row, Story, column, table, wider

pytestmark = needs_broker

PEOPLE = table(
    13, "people", "id int", "name varchar(64)", "mail varchar(40)", "born date", primary="id"
)
MASKS = {
    "name": "hash",
    "mail": "email",
    "born": {"shift-days": 40, "by": "id"},
    "nick": {"partial": 1},
}
RULES: dict[str, Any] = {"columns": [{"tables": ["d.people"], "mask": MASKS}], "mask": SECTION}
SECRETS = (b"secret", b"1999-07-01", KEY.encode())


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)


def person(number: int, **more: Any) -> Row:
    name = f"secret name {number}"
    return {
        "id": number,
        "name": name,
        "mail": f"secret{number}@b.org",
        "born": "1999-07-01",
        **more,
    }


def as_masked(row: Row) -> Row:
    row = {name: value for name, value in row.items() if name != ROWID_NAME}
    found = {**row, "name": masked(row["name"], "hash"), "mail": masked(row["mail"], "email", 40)}
    if "nick" in row:
        found["nick"] = masked(row["nick"], {"partial": 1})
    found = {n: v.encode() if isinstance(v, str) else v for n, v in found.items()}
    return found | {"born": row["born"] and shifted(row["born"], 40, str(row["id"]))}


def told(folder: Path) -> tuple[Story, list[Row]]:
    """A table with masked columns, through DDL with clear defaults; the rows at the end."""
    story = story_of(folder)
    story.create(PEOPLE, "CREATE TABLE people (id int primary key, name ... DEFAULT 'secret')")
    rows = [person(n) for n in range(1, 5)]
    story.insert(PEOPLE, *rows)
    rows[0] = story.update(PEOPLE, rows[0], {"mail": "secret@other.org", "born": None})
    story.delete(PEOPLE, rows.pop(1))
    nicked = wider(PEOPLE, column(5, "nick varchar(9)", default="secret", origin_default="secret"))
    query = "ALTER TABLE people ADD COLUMN nick varchar(9) DEFAULT 'secret'"
    story.statement(Action.ADD_COLUMN, query, nicked)
    more = [person(8, nick="secret"), person(9, nick=None)]
    story.insert(nicked, *more)
    more[0] = story.update(nicked, more[0], {"nick": "secret s"})
    return story, rows + more  # readers know the others as they were written


def parts(messages: Any) -> Iterator[bytes]:
    for message in messages:
        yield from (
            part.encode() if isinstance(part, str) else part
            for part in (message.key, message.value, *(value for _, value in message.headers))
            if part
        )


@pytest.mark.parametrize("name", READERS)
def test_readers_of_every_format_find_masked_values_alone(
    name: str, options: Kafka, tmp_path: Path
) -> None:
    story, rows = told(tmp_path)
    with format_of(name, options) as used:
        apply(settings_to(story.url, used.options, RULES))
        sent = merged(row_topics(used.options))
        found = rebuilt(map(used.reader().read, sent))
        registered = [text.encode() for text in used.registry.texts.copy()]
    assert found == {"d.people": Counter(frozen(as_masked(row)) for row in rows)}
    for part in (*parts(sent), *registered, json.dumps(markers(used.options)).encode()):
        assert not [secret for secret in SECRETS if secret in part], part


def test_a_message_in_a_claim_checks_store_is_masked(options: Kafka, tmp_path: Path) -> None:
    story = story_of(tmp_path)
    wide = table(13, "people", "id int", "name varchar(64)", "mail text", primary="id")
    story.create(wide, "CREATE TABLE people (...)")
    row = {"id": 1, "name": "secret", "mail": "secret " * 9_000}
    story.insert(wide, row)
    story.update(wide, row, {"name": "secret 2"})
    claims = tmp_path / "claims"
    small = replace(
        options,
        topic_config={"max.message.bytes": 20_000},
        large_messages="claim-check",
        claim_check_url=claims.as_uri(),
    )
    rules = {"columns": [{"tables": ["d.*"], "mask": {"name": "hash", "mail": {"partial": 0}}}]}
    apply(settings_to(story.url, small, rules | {"mask": SECTION}))
    documents = [json.loads(path.read_bytes()) for path in claims.rglob("*") if path.is_file()]
    stored = [base64.b64decode(each["value"]) for each in documents]
    assert stored and all(b"*" * 50_000 in value for value in stored)
    for part in (*parts(merged(row_topics(small))), *stored):
        assert b"secret" not in part


def test_statements_in_topics_have_masked_defaults(options: Kafka, tmp_path: Path) -> None:
    story, _ = told(tmp_path)
    apply(settings_to(story.url, options, RULES))
    documents = [json.loads(m.value or b"{}") for m in merged(row_topics(options))]
    _, *others = [each["sql"] for each in documents if each["isDdl"] and each["table"]]
    (added,) = others
    assert added.startswith("ALTER TABLE `d`.`people` ADD COLUMN `nick` VARCHAR(9)")
    assert "DEFAULT '*****t'" in added
