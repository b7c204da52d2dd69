"""One landing, five databases of as many shapes: each is what a model in Python makes of the
changes, though processes that apply are killed, and verification finds each equal.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.tidb_session import TidbAddress
from sluice.etl.downstream import MySQLSession
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader
from sluice.etl.settings import Settings
from sluice.etl.settings.pipelines import pipelines
from sluice.etl.verify.downstream_endpoint import DownstreamEndpoint
from sluice.etl.verify.table_compare import TableComparer, TableComparison
from sluice.etl.verify.tables import compared_tables
from sluice.etl.verify.upstream_endpoint import UpstreamEndpoint
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Schema
from tests.etl.apply.ruled_columns import apply
from tests.etl.apply.soft_deleted import time_of
from tests.etl.apply.versions import run
from tests.etl.copy.given_rows import serving
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.masking import KEY, VARIABLE
from tests.etl.story import Row, Story, table

ROOT = Path(__file__).parents[3]
PEOPLE = table(
    11,
    "t",
    "id int",
    "name varchar(40)",
    "secret varchar(40)",
    "amount int",
    primary="id",
)
CONFIG = """
[upstream]
pd-urls = "http://127.0.0.1:1"
[relay]
url = "{url}"
[apply]
max-rows = 20
mode = "{mode}"
[downstream]
host = "127.0.0.1"
port = {port}
checkpoint-schema = "{name}_binlog"
recycle-schema = "{name}_recycle"
[[route]]
schema-pattern = "d"
target-schema = "d_{name}"
"""
MASKED = f"""
[filter.mask]
key-env = "{VARIABLE}"
relay-log = "clear"
[[filter.columns]]
tables = ["d.t"]
leave-out = ["secret"]
mask = {{ name = {{ partial = 2 }} }}
"""
_RULE = '[[filter.columns]]\ntables = ["d.t"]\n'
RULES = {
    "plain": "",
    "masked": MASKED,
    "soft": _RULE + 'soft-delete = "gone"\n',
    "history": _RULE + "history = {}\n",
    "some": '[[filter.rows]]\ntables = ["d.t"]\nwhere = "amount >= 10"\n',
}


@dataclass
class Model:
    """The rows upstream, and what became of those that are gone."""

    rng: random.Random
    rows: dict[int, Row] = field(default_factory=dict)
    gone: dict[int, tuple[Row, datetime]] = field(default_factory=dict)
    versions: list[tuple[Row, int, int]] = field(default_factory=list)
    """(row, commit that made it, commit that ended it or 0)"""

    def transaction(self, story: Story) -> None:
        before, encoded, when = dict(self.rows), [], time_of(story.now + 10)
        for _ in range(self.rng.randint(1, 5)):
            key = self.rng.randint(1, 12)
            old = self.rows.pop(key, None)
            if old is not None and self.rng.random() < 0.4:
                encoded.append((PEOPLE, DELETE, encode_delete(PEOPLE, old)))
                self.gone[key] = old, when
                continue
            new: Row = {"id": key, "name": None, "secret": f"s{self.rng.randint(1, 3)}"}
            new |= {"name": f"person {self.rng.randint(1, 30)}"}
            new["amount"] = self.rng.choice((5, 10, 15))
            self.rows[key] = new
            self.gone.pop(key, None)
            encoded.append(
                (PEOPLE, INSERT, encode_insert(PEOPLE, new))
                if old is None
                else (PEOPLE, UPDATE, encode_update(PEOPLE, old, new))
            )
        story.changes(*encoded)
        self._note(before, story.now)

    def _note(self, before: dict[int, Row], ts: int) -> None:
        for key in {*before, *self.rows}:
            old, new = before.get(key), self.rows.get(key)
            if old == new:
                continue
            if old is not None:
                self.versions = [
                    (row, begun, ts if row is old and not ended else ended)
                    for row, begun, ended in self.versions
                ]
            if new is not None:
                self.versions.append((new, ts, 0))

    def wanted(self, name: str) -> list[tuple[Any, ...]]:
        shapes: dict[str, Callable[[], Any]] = {
            "plain": lambda: (tuple(row.values()) for row in self.rows.values()),
            "masked": lambda: (
                (row["id"], "*" * (len(row["name"]) - 2) + row["name"][-2:], row["amount"])
                for row in self.rows.values()
            ),
            "soft": lambda: [
                *((*row.values(), None) for row in self.rows.values()),
                *((*row.values(), when) for row, when in self.gone.values()),
            ],
            "history": lambda: (
                (*row.values(), time_of(begun), time_of(ended) if ended else None, begun)
                for row, begun, ended in self.versions
            ),
            "some": lambda: (tuple(r.values()) for r in self.rows.values() if r["amount"] >= 10),
        }
        return sorted(shapes[name](), key=repr)


def differences(settings: Settings, address: TidbAddress, story: Story) -> Any:
    """What a verification finds at the downstream's checkpoint."""
    schema = Schema(PEOPLE.schema_id, "d", "utf8mb4", "utf8mb4_bin")
    known = SourceSchema(story.now, 5, (schema,), (PEOPLE,))
    session = MySQLSession(settings.downstream)
    session.connect()
    try:
        tables, left = compared_tables(settings, known, session)
    finally:
        session.close()
    assert len(tables) == 1 and not left
    with ConsistentReader.open(settings.downstream, story.cluster_id, 2) as snapshot:
        assert snapshot.checkpoint.commit_ts == story.now
        sides = UpstreamEndpoint(address, story.now, 2), DownstreamEndpoint(snapshot, "test")
        said = TableComparer(*sides).run(tables, lambda: True)
        (found,) = (one for one in said if isinstance(one, TableComparison))
        return found.found.apart


def killed(name: str, batches: int) -> int:
    arguments = [sys.executable, "-m", "tests.etl.apply.applying_pipeline", name, str(batches)]
    return subprocess.run(arguments, cwd=ROOT, timeout=120).returncode


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["atomic", pytest.param("parallel", marks=pytest.mark.beyond_ci)])
def test_databases_of_several_shapes_on_one_landing_are_each_as_their_rules_say(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    story, model = Story(mariadb, tmp_path), Model(random.Random(mode))
    story.create(PEOPLE, "CREATE TABLE t (...)")
    (folder := tmp_path / "pipelines").mkdir()
    for name, rules in RULES.items():
        text = CONFIG.format(url=story.url, mode=mode, port=mariadb.port, name=name) + rules
        (folder / f"{name}.toml").write_text(text)
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    monkeypatch.delenv("SLUICE_CONFIG", raising=False)
    found = pipelines()
    assert found.problems() == []

    for number in range(1, 61):
        model.transaction(story)
        if number % 20:
            continue
        story.idle(story.now + (700 << 18))
        for name in ("history", "soft", "masked"):
            if number < 60:
                assert killed(name, model.rng.randint(1, 2)) == -signal.SIGKILL
        for name in RULES:
            apply(story, found[name].settings)
            rows = sorted(run(mariadb, f"SELECT * FROM d_{name}.t"), key=repr)
            assert rows == model.wanted(name), name
    served = [
        [value.encode() if isinstance(value, str) else value for value in row.values()]
        for row in model.rows.values()
    ]
    with serving(PEOPLE, served, region_rows=4) as address:
        for name in RULES:
            assert differences(found[name].settings, address, story) is None, name
        run(mariadb, "UPDATE d_history.t SET amount = 99 WHERE valid_to IS NULL LIMIT 1")
        assert differences(found["history"].settings, address, story).count == 1
        for name in ("plain", "soft", "some"):
            assert differences(found[name].settings, address, story) is None, name
