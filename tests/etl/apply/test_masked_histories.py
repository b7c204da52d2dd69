"""Random histories whose relay log is masked: DDL in the middle of windows, and what is made of it.

The model masks the rows of a story by `hmac`, and knows nothing of windows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.etl.changes.masks.landed_rows import MaskOrder, masked_batches
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.rules.landed_masks import LandedMasks
from sluice.etl.history.archive import archive_through
from sluice.etl.history.as_of import run_locally, tables_as_of
from sluice.etl.history.find.query import SearchQuery
from sluice.etl.history.find.run import search
from sluice.etl.history.history_log import HistoryLog
from sluice.etl.history.undo import UndoError, for_upstream, invert_changes, read_transaction
from sluice.etl.history.undo.preview import preview
from sluice.etl.landing._masking import note_masks
from sluice.etl.restore import RestoreRequest
from sluice.etl.settings import Relay, Settings
from sluice.relay import RelayLog, WindowRecord, iter_parts
from sluice.tidb.ddl_actions import Action
from sluice.tidb.schema import Column, Table
from tests.etl.apply.ruled_columns import apply, settings_of
from tests.etl.history.archive.archiving import LocalJobs
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.masking import KEY, SECTION, VARIABLE, hashed
from tests.etl.restore.restoring import INTO, restore
from tests.etl.story import Row, Story, column, table

MASKED = ("name", *(f"c{n}" for n in range(600)))
DEFAULT = "a secret default "
STEPS = 40


@pytest.fixture(scope="module", autouse=True)
def key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, KEY)
        yield


class Past:
    """A table's history, and the rows that it leaves in the clear."""

    def __init__(self, story: Story, seed: int) -> None:
        self.story, self.random = story, random.Random(seed)
        self.table = table(11, "t", "id int", "name varchar(64)", "note varchar(64)", primary="id")
        self.rows: dict[int, Row] = {}
        self.secrets: set[str] = set()
        self._ids, self._next = 11, 0
        story.create(self.table, "CREATE TABLE t (...)")

    def step(self) -> None:
        acts = [self.insert, self.insert, self.insert, self.update, self.update, self.delete]
        ddl = [self.add, self.add, self.drop, self.modify, self.rename, self.truncate, self.born]
        self.random.choice([*acts, *acts, *ddl])()

    def insert(self, into: Table | None = None) -> None:
        made = [self._row(into or self.table) for _ in range(self.random.randint(1, 3))]
        self.story.insert(into or self.table, *(dict(row) for row in made))
        self.rows |= {row["id"]: {c.name: row[c.name] for c in self.table.columns} for row in made}

    def update(self) -> None:
        if self.rows:
            old = self.rows[self.random.choice(sorted(self.rows))]
            new = {c.name: self._value(c.name) for c in self.table.columns[1:]}
            self.rows[old["id"]] = old | new
            self.story.update(self.table, old, new)

    def delete(self) -> None:
        if self.rows:
            self.story.delete(self.table, self.rows.pop(self.random.choice(sorted(self.rows))))

    def add(self) -> None:
        number = self._number()
        name, default = f"c{number}", f"{DEFAULT}{number}"
        self.secrets.add(default)
        new = column(100 + number, f"{name} varchar(40)", default=default, origin_default=default)
        done = self._with(*self.table.columns, new)
        if self.random.random() < 0.6:
            self.insert(done)
        text = f"ALTER TABLE {self.table.name} ADD {name} varchar(40) DEFAULT '{default}'"
        self.story.statement(Action.ADD_COLUMN, text, done)
        self.table = done
        self.rows = {i: row | {name: default} for i, row in self.rows.items()}

    def drop(self) -> None:
        if len(self.table.columns) > 3:
            gone = self.random.choice(self.table.columns[3:])
            self.table = self._with(*(c for c in self.table.columns if c is not gone))
            text = f"ALTER TABLE {self.table.name} DROP COLUMN {gone.name}"
            self.story.statement(Action.DROP_COLUMN, text, self.table)
            for row in self.rows.values():
                del row[gone.name]

    def modify(self) -> None:
        """MODIFY COLUMN that writes all values once more, under another number."""
        was = self.table.columns[1]
        named, wide = (
            f"_Col$_{was.name}_0",
            replace(was, id=100 + self._number(), flen=was.flen + 1),
        )
        self.insert(self._with(*self.table.columns, replace(wide, name=named)))
        self.table = self._with(self.table.columns[0], wide, *self.table.columns[2:])
        text = f"ALTER TABLE {self.table.name} MODIFY {was.name} varchar({wide.flen})"
        self.story.statement(Action.MODIFY_COLUMN, text, self.table)

    def _wider(self, was: Column) -> Column:
        return replace(was, id=100 + self._number(), flen=was.flen + 1)

    def rename(self) -> None:
        old, self.table = self.table.name, replace(self.table, name=f"t{self._number()}")
        text = f"RENAME TABLE {old} TO {self.table.name}"
        self.story.statement(Action.RENAME_TABLE, text, self.table)

    def truncate(self) -> None:
        gone, self._ids = self.table.id, self._ids + 1
        self.table, self.rows = replace(self.table, id=self._ids), {}
        text = f"TRUNCATE TABLE {self.table.name}"
        self.story.statement(Action.TRUNCATE_TABLE, text, gone, self.table)

    def born(self) -> None:
        """Create another table, and go on with that."""
        self._ids, self.rows = self._ids + 1, {}
        self.table = replace(self.table, id=self._ids, name=f"t{self._number()}")
        self.story.create(self.table, f"CREATE TABLE {self.table.name} (...)")

    def expected(self) -> list[tuple[object, ...]]:
        widths = {c.name: min(64, c.flen) for c in self.table.columns}
        return sorted(
            (
                tuple(
                    hashed(row[name], width) if name in MASKED else row[name]
                    for name, width in widths.items()
                )
                for row in self.rows.values()
            ),
            key=repr,
        )

    def _row(self, into: Table) -> Row:
        return {c.name: self._value(c.name) for c in into.columns} | {"id": self._number()}

    def _value(self, name: str) -> str:
        if name == "note":
            return "a plain note"
        self.secrets.add(value := f"a secret value {self._number()}.")
        return value

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _with(self, *columns: object) -> Table:
        return replace(
            self.table, columns=tuple(replace(c, offset=n) for n, c in enumerate(columns))
        )


def landed_together(settings: Settings, folder: Path, dice: random.Random) -> Settings:
    """Copy a relay log as landing masks it, several windows as one."""
    relay, masks = settings.open_relay(), LandedMasks(settings.filters)
    found = replace(settings, relay=Relay(f"file://{folder}/masked"))
    other, windows = RelayLog.open(found.relay.url), list(relay.windows(0))
    while windows:
        some = [windows.pop(0) for _ in range(min(len(windows), dice.randint(1, 6)))]
        window = as_one(some)
        schema = RecordedSchema.from_window(window)
        rows = [b for one in some for b in iter_parts(relay.storage, one.parts)]
        ids = {i for batch in rows for i in batch["table_id"].to_pylist()}
        order = MaskOrder.from_text(masks.order_within(schema, ids).text)
        whole = pa.Table.from_batches(rows).combine_chunks().to_batches() if rows else []
        part = other.write_part(window.lo, window.hi, "m", 0, masked_batches(whole, order, ()))
        made = replace(window, parts=(part,) if part is not None else ())
        other.commit(masks.describe(schema).write_to(made))
    note_masks(found, other, min(window.lo for window in other.windows(0)))
    return found


def as_one(windows: list[WindowRecord]) -> WindowRecord:
    """Windows as landing would have landed them together."""
    tables: dict[str, object] = {}
    born: set[str] = set()
    for window in windows:
        tables |= {i: t for i, t in window.tables.items() if i not in tables.keys() | born}
        for ddl in window.ddls:
            born |= ddl["effect"]["tables"].keys() - tables.keys()
    return replace(
        windows[-1],
        lo=windows[0].lo,
        tables=tables,
        ddls=tuple(ddl for window in windows for ddl in window.ddls),
        changes=sum(window.changes for window in windows),
        transactions=len(windows),
    )


def clear_values_in(folder: Path, relay: RelayLog, secrets: set[str]) -> list[tuple[str, str]]:
    """The clear values in the files of a folder, and in the rows of a relay log."""
    held = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for path in folder.rglob("*.parquet"):
        held[f"rows of {path}"] = repr(pq.read_table(path).to_pylist()).encode()
    for window in relay.windows(0):
        held[f"window {window.hi}"] = (
            repr(window.to_json()).encode()
            + repr(
                [batch["row"].to_pylist() for batch in iter_parts(relay.storage, window.parts)]
            ).encode()
        )
    assert len(held) > 10
    return [(name, s) for name, data in held.items() for s in secrets if s.encode() in data]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_histories_with_ddl_are_masked_in_all_that_keeps_them(
    mariadb: MariaDBServer, tmp_path: Path, seed: int
) -> None:
    story = Story(mariadb, tmp_path)
    past = Past(story, seed)
    for _ in range(STEPS):
        past.step()
    past.insert()
    last_insert = story.now
    settings = settings_of(story, {"mask": dict.fromkeys(MASKED, "hash")}, filter={"mask": SECTION})
    assert clear_values_in(tmp_path / "relay", settings.open_relay(), past.secrets)
    landed = landed_together(settings, tmp_path, past.random)
    apply(story, landed)
    name, expected = past.table.name, past.expected()
    assert story.rows(name) == expected

    archive_through(landed, jobs=LocalJobs(landed))
    asked = tables_as_of(landed, story.now, (f"d.{name}",), run=run_locally)
    shown = [tuple(r.values()) for _, batch in asked.rows() for r in batch.to_pylist()]
    assert sorted(shown, key=repr) == expected
    everything = SearchQuery(0, story.now, ("d.*",))
    assert past.secrets.isdisjoint(str(search(landed, everything)).split("'"))
    touched = read_transaction(HistoryLog.open(landed), last_insert)
    shown = repr([list(preview(invert_changes(one), 100)) for one in touched.tables])
    assert not [secret for secret in past.secrets if secret in shown]
    with pytest.raises(UndoError, match="TiDB would lose the clear ones"):
        for_upstream([invert_changes(one) for one in touched.tables])
    request = RestoreRequest(story.now, (f"d.{name}",), INTO)
    restore(landed, request)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM d_restored.{name}")
        assert sorted(cursor.fetchall(), key=repr) == expected
    assert not clear_values_in(tmp_path / "masked", landed.open_relay(), past.secrets)
