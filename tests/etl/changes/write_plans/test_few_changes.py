"""What few changes come to, as the compiled kernels tell it: executed on rows in a dict, it must
end as the changes themselves do, and every statement must do exactly what it says.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluice.tidb.kernel
from sluice.etl.changes.formats import kernel as lines_kernel
from sluice.etl.changes.steps import DeleteDetail, LoadDetail, Step
from sluice.etl.changes.write_plans import StageTimings
from sluice.etl.changes.write_plans import small_batches as few_changes
from sluice.etl.changes.write_plans.change_set import ChangeSet
from sluice.etl.changes.write_plans.net_effect import InconsistentHistory, net_effect
from sluice.etl.changes.write_plans.small_batches import (
    MAX_SMALL_CHANGES,
    SmallNetEffect,
    reduce_plan_for,
)
from sluice.etl.changes.write_plans.table_changes import TableChanges, changes_of
from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE
from sluice.tidb.rows import ROWID_NAME, encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Column, Index, Table
from sluice.tidb.table_cache import TableCache
from tests.compiled_kernels import compiled_kernel
from tests.examples import examples

Row = dict[str, Any]
TEXT = {"flen": 20, "charset": "utf8mb4", "collate": "utf8mb4_bin"}
A, B = Column(1, "a", 0, 8, 3), Column(2, "b", 1, 15, 3, **TEXT)  # type: ignore[arg-type]
REST = (Column(3, "u", 2, 8), Column(4, "v", 3, 15, **TEXT), Column(5, "d", 4, 5))  # type: ignore[arg-type]
BY_U = Index(7, "by_u", (("u", 2, -1),), unique=True)
PLAIN = tuple(Index(n, f"i{n}", (("v", 3, -1),)) for n in range(10, 16))
BOTH = Index(1, "PRIMARY", (("a", 0, -1), ("b", 1, -1)), unique=True, primary=True)
TABLES = {
    "number": Table(1, 1, "d", "t", (A, B, *REST[:2]), pk_is_handle=True),
    "unsigned": Table(2, 1, "d", "t", (replace(A, flag=3 | 32), B, *REST[:2]), pk_is_handle=True),
    "unique": Table(3, 1, "d", "t", (A, B, *REST[:2]), (BY_U,), pk_is_handle=True),
    "many indexes": Table(4, 1, "d", "t", (A, B, *REST[:2]), PLAIN, pk_is_handle=True),
    "two columns": Table(
        5, 1, "d", "t", (A, B, *REST[:2]), (BOTH,), is_common_handle=True, common_handle_version=1
    ),
    "heap": Table(6, 1, "d", "t", (A, B, *REST[:2]), (BOTH,)),
    "by Arrow": Table(7, 1, "d", "t", (A, B, *REST), pk_is_handle=True),
}


@pytest.fixture(autouse=True, scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    found = compiled_kernel("tidb/kernel", tmp_path_factory.mktemp("found"))
    lines = compiled_kernel("etl/changes/formats/kernel", tmp_path_factory.mktemp("lines"))
    with pytest.MonkeyPatch.context() as patch:
        for module, kernel, names in (
            (sluice.tidb.kernel, found, ("walk", "gather", "alike")),
            (lines_kernel, lines, ("lines", "net")),
        ):
            for name in names:
                patch.setattr(module, name, getattr(kernel, name))
            patch.setattr(module, "IS_COMPILED", True)
        patch.setattr(few_changes, "_reduce_plans", TableCache(few_changes._reduce_plan_of))
        yield


def key_of(table: Table, row: Row) -> Any:
    return (row["a"], row["b"]) if BOTH in table.indexes else row["a"]


@st.composite
def histories(draw: st.DrawFn) -> tuple[Table, list[Row], list[tuple[int, bytes]], list[Row]]:
    """A table, its rows, changes to them, and its rows afterwards."""
    table = draw(st.sampled_from(list(TABLES.values())))
    low = 0 if table.columns[0].unsigned else -(2**63)
    numbers = st.one_of(
        st.integers(0, 12), st.sampled_from([low, 2**63 - 1, 2**64 - 1 if low == 0 else -1])
    )
    words = st.sampled_from(["", "x", "X", "y", "é"])
    rows: dict[int, Row] = {}
    changes: list[tuple[int, bytes]] = []
    handles = 0

    def fresh(row: Row | None = None) -> Row | None:
        """A row that may be there beside the others, with the key of `row` or another one."""
        made = {
            "a": draw(numbers),
            "b": draw(words),
            "u": draw(st.integers(0, 9)),
            "v": draw(words),
            "d": 1.5,
        }
        if row is not None:
            made |= {
                name: row[name] for name in draw(st.sampled_from([("a", "b"), ("a", "b", "u"), ()]))
            }
        for other in rows.values():
            if other is row:
                continue
            if key_of(table, other) == key_of(table, made) or (
                BY_U in table.indexes and other["u"] == made["u"]
            ):
                return None
        return made

    def come() -> Row | None:
        nonlocal handles
        handles += 1
        row = fresh()
        if row is not None:
            rows[handles] = row | {ROWID_NAME: handles}
            return rows[handles]
        return None

    for _ in range(draw(st.integers(0, 8))):
        come()
    before = list(rows.values())
    clustered = table.handle_kind != "heap"
    for _ in range(draw(st.integers(1, 20))):
        kind = draw(st.sampled_from([INSERT, UPDATE, UPDATE, DELETE]))
        if kind == INSERT:
            row = come()
            if row is not None:
                changes.append((INSERT, encode_insert(table, row)))
            continue
        if not rows:
            continue
        handle = draw(st.sampled_from(sorted(rows)))
        row = rows[handle]
        if kind == DELETE:
            del rows[handle]
            changes.append((DELETE, encode_delete(table, row)))
            continue
        new = fresh(row)
        if new is None or (clustered and key_of(table, new) != key_of(table, row)):
            continue  # TiDB sends an update of a clustered key as a delete and an insert
        rows[handle] = new | {ROWID_NAME: handle}
        changes.append((UPDATE, encode_update(table, row, rows[handle])))
    return table, before, changes, list(rows.values())


def segment_of(table: Table, changes: list[tuple[int, bytes]], **more: Any) -> ChangeSet:
    """With rows of another table between those of this one."""
    rows = [(10 + n // 2, 1, n, table.id, 1, kind, row) for n, (kind, row) in enumerate(changes)]
    foreign = [(10 + n // 2, 1, n, 99, 1, 0, b"other") for n in range(len(rows))]
    mixed = [row for pair in zip(foreign, rows, strict=True) for row in pair]
    columns = [
        pa.array(c, f.type) for c, f in zip(zip(*mixed, strict=True), PART_SCHEMA, strict=True)
    ]
    whole = pa.Table.from_arrays(columns, schema=PART_SCHEMA)
    places = np.arange(1, len(mixed), 2)
    return ChangeSet(changes=whole, tables=((table, places),), after=9, through=100, **more)


class Rows:
    """Rows by key, changed by steps as a strict server would."""

    def __init__(self, table: Table, rows: list[Row]) -> None:
        self.table = table
        self.names = [column.name for column in table.stored_columns]
        self.rows = {key_of(table, row): self.as_text(row) for row in rows}

    def as_text(self, row: Row) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in self.names)

    def execute(self, step: Step) -> None:
        text = bytes(step.payload).decode()
        if isinstance(step.detail, DeleteDetail):
            keys = self.listed(text)
            assert len(keys) == len(set(keys)) == step.rows
            for key in keys:
                del self.rows[key]
            return
        detail = step.detail_of(LoadDetail)
        assert detail.layout.columns == tuple(self.names) and detail.keys
        come = [tuple(line.split("\t")) for line in text.split("\n")[:-1]]
        assert len(come) == step.rows
        at = self.names.index("u")
        for row in come:
            key = key_of(self.table, {"a": int(row[0]), "b": row[1]})
            former = self.rows.get(key)
            assert (former is not None) == bool(detail.replaces)
            assert former != row, "a server doesn't count that"
            if BY_U in self.table.indexes:
                assert row[at] not in [other[at] for of, other in self.rows.items() if of != key]
                assert former is None or former[at] == row[at]
            self.rows[key] = row
        assert detail.replaces in (0, step.rows)

    def listed(self, statement: str) -> list[Any]:
        if BOTH in self.table.indexes:
            found = re.findall(
                r"\(`a`=(-?\d+) AND `b`='([^']*)' AND [^)]*\) AS BINARY\)='\2'\)", statement
            )
            return [(int(a), b) for a, b in found]
        listed = re.fullmatch(r"DELETE FROM `d`\.`t` WHERE `a` IN \(([-\d,\n]+)\)", statement)
        assert listed is not None
        return [int(key) for key in listed[1].split(",\n")]


def reduced_alone(segment: ChangeSet, table: Table, places: np.ndarray) -> SmallNetEffect | None:
    way = reduce_plan_for(segment, table, places)
    return None if way is None else way.reduce(segment, table, places)


@settings(max_examples=examples(300))
@given(histories())
def test_what_few_changes_come_to_is_where_they_lead(
    history: tuple[Table, list[Row], list[tuple[int, bytes]], list[Row]],
) -> None:
    table, before, changes, after = history
    if not changes:
        return
    segment = segment_of(table, changes)
    places = segment.tables[0][1]
    few = reduced_alone(segment, table, places)
    if few is None:
        assert table is TABLES["unsigned"] and comes_back(table, before, after)
    general = changes_of(segment, table, places, StageTimings())
    assert isinstance(general, TableChanges)
    assert not [*general.as_bytes(9), *general.checks()]
    for found in (general,) if few is None else (few, general):
        rows = Rows(table, before)
        for step in [*found.deletes(), *found.loads()]:
            assert (step.full_name, step.commit_ts) == ("d.t", 10 + (2 * len(changes) - 1) // 4)
            rows.execute(step)
        assert sorted(rows.rows.values()) == sorted(rows.as_text(row) for row in after)
    if few is not None:
        assert (few.first_ts, few.last_ts) == (general.first_ts, general.last_ts)


def comes_back(table: Table, before: list[Row], after: list[Row]) -> bool:
    """Return whether a row was deleted and another one with its key was inserted.

    The key is then the row's handle in one image and a column in the other. If it is unsigned the
    two are written in different ways, which the kernel doesn't compare. Every other history must
    be taken.
    """
    former = {key_of(table, row): row[ROWID_NAME] for row in before}
    return any(former.get(key_of(table, row), row[ROWID_NAME]) != row[ROWID_NAME] for row in after)


def row(a: int, v: str = "x", **more: Any) -> Row:
    return {"a": a, "b": "b", "u": a, "v": v, "d": 0.5, ROWID_NAME: a} | more


def few_of(table: Table, changes: list[tuple[int, bytes]], **more: Any) -> SmallNetEffect | None:
    segment = segment_of(table, changes, **more)
    return reduced_alone(segment, table, segment.tables[0][1])


def payloads(few: SmallNetEffect | None) -> list[str]:
    assert few is not None
    return [bytes(step.payload).decode() for step in [*few.deletes(), *few.loads()]]


def test_a_table_with_rows_of_each_kind_takes_two_statements_if_its_indexes_are_few() -> None:
    for name, wanted in (
        ("number", ["DELETE FROM `d`.`t` WHERE `a` IN (1,\n2)", "3\tb\t3\tx\n2\tb\t2\ty\n"]),
        ("many indexes", ["DELETE FROM `d`.`t` WHERE `a` IN (1)", "3\tb\t3\tx\n", "".join(
            f"{n}\tb\t{n}\ty\n" for n in (2, 4, 5)
        )]),
    ):  # fmt: skip
        table = TABLES[name]
        kept = (2,) if name == "number" else (2, 4, 5)
        changes = [(DELETE, encode_delete(table, row(1))), (INSERT, encode_insert(table, row(3)))]
        changes += [(UPDATE, encode_update(table, row(n), row(n, "y"))) for n in kept]
        assert payloads(few_of(table, changes)) == wanted


def test_tables_that_are_alike_but_for_their_names_have_each_its_own_rows() -> None:
    for name in TABLES:
        one = TABLES[name]
        other = replace(one, id=one.id + 50, schema_name="e", name="s")
        assert other.form == one.form
        for table in (one, other, one):
            few = few_of(
                table,
                [(DELETE, encode_delete(table, row(1))), (INSERT, encode_insert(table, row(2)))],
            )
            assert few is not None
            assert {step.full_name for step in [*few.deletes(), *few.loads()]} == {table.full_name}
            (delete,) = few.deletes()
            begin = f"DELETE FROM `{table.schema_name}`.`{table.name}` WHERE"
            assert bytes(delete.payload).decode().startswith(begin)


def test_what_takes_a_closer_look_is_left_to_others() -> None:
    table = TABLES["number"]
    fine = [(INSERT, encode_insert(table, row(1)))]
    assert few_of(table, fine) is not None
    twice = [*fine, *fine]
    assert few_of(table, twice) is None, "they can't follow one another"
    assert few_of(table, [(UPDATE, encode_update(table, row(1), row(1, "y"))), *fine]) is None
    assert few_of(table, [(INSERT, fine[0][1][:-1])]) is None
    assert (
        few_of(table, [(INSERT, encode_insert(table, row(n))) for n in range(MAX_SMALL_CHANGES)])
        is not None
    )
    assert (
        few_of(
            table, [(INSERT, encode_insert(table, row(n))) for n in range(MAX_SMALL_CHANGES + 1)]
        )
        is None
    )
    unsigned = TABLES["unsigned"]
    back = [(DELETE, encode_delete(unsigned, row(1))), (INSERT, encode_insert(unsigned, row(1)))]
    assert few_of(unsigned, back) is None, "the key is written in two ways"
    for doubt in (
        {"safe": True}, {"replayed": True},
        {"partial": frozenset({table.id})}, {"sources": {table.id: "x"}},
        {"reverted": {table.id: PART_SCHEMA.empty_table()}},
    ):  # fmt: skip
        assert few_of(table, fine, **doubt) is None
    assert few_of(replace(table, pk_is_handle=False), fine) is None, "without a key"


@given(
    st.lists(
        st.tuples(st.sampled_from([INSERT, UPDATE, DELETE]), st.integers(0, 4), st.integers(0, 4)),
        max_size=9,
    )
)
def test_the_kernel_finds_the_net_effect_that_numpy_finds(
    changes: list[tuple[int, int, int]],
) -> None:
    old = [before for kind, before, _ in changes if kind != INSERT]
    new = [after for kind, _, after in changes if kind != DELETE]
    kinds = [kind for kind, _, _ in changes]
    cells = [b"".join(cell(8, key) for key in keys) for keys in (old, new)]
    ends = array("q", [len(kinds)]).tobytes()
    found = lines_kernel.net(b"", *cells, 1, array("q", [0]).tobytes(), bytes(kinds), ends)
    assert found is not None
    counts = array("q", found[4]).tolist()
    try:
        wanted = net_effect(
            np.array(kinds, np.int8), np.array(old, np.int64), np.array(new, np.int64)
        )
    except InconsistentHistory:
        assert found[:4] == (b"",) * 4
        assert counts == [-1, -1, -1]
        return
    names = ("deleted", "inserted", "updated_old", "updated_new")
    assert [array("q", places).tolist() for places in found[:4]] == [
        getattr(wanted, name).tolist() for name in names
    ]
    assert counts == [len(getattr(wanted, name)) for name in names[:3]]


def cell(flag: int, word: int, start: int = 0) -> bytes:
    return (flag << 56 | start).to_bytes(8, "little") + (word % 2**64).to_bytes(8, "little")


@settings(max_examples=examples(300))
@given(
    st.binary(max_size=8),
    st.lists(
        st.builds(
            cell,
            st.sampled_from([0, 2, 2, 5, 6, 8, 8, 9, 255]),
            st.integers(0, 9),
            st.integers(0, 9),
        )
    ),
    st.lists(
        st.builds(
            cell,
            st.sampled_from([0, 2, 2, 5, 6, 8, 8, 9, 255]),
            st.integers(0, 9),
            st.integers(0, 9),
        )
    ),
    st.integers(-1, 3),
    st.lists(st.integers(-1, 3), max_size=3),
    st.binary(max_size=70) | st.lists(st.integers(0, 2), max_size=70).map(bytes),
    st.lists(st.integers(-1, 70), max_size=3).map(sorted),
    st.booleans(),
)
def test_cells_that_nobody_found_are_refused_or_lead_somewhere(
    data: bytes,
    old: list[bytes],
    new: list[bytes],
    slots: int,
    key: list[int],
    kinds: bytes,
    ends: list[int],
    whole: bool,
) -> None:
    ends = [*(end for end in ends if end <= len(kinds)), len(kinds)] if whole else ends
    many = array("q", ends).tobytes()
    try:
        found = lines_kernel.net(
            data, b"".join(old), b"".join(new), slots, array("q", key).tobytes(), kinds, many
        )
    except ValueError as error:
        assert str(error) == "cells of other changes"
        return
    if found is not None:
        counts = sum(kind != INSERT for kind in kinds), sum(kind != DELETE for kind in kinds)
        gone, fresh, kept_old, kept_new = (array("q", places).tolist() for places in found[:4])
        assert all(0 <= place < counts[0] for place in gone + kept_old)
        assert all(0 <= place < counts[1] for place in fresh + kept_new)
        counted = np.frombuffer(found[4], np.int64).reshape(len(ends), 3)
        assert ((counted >= 0).all(axis=1) | (counted == -1).all(axis=1)).all()
        assert np.maximum(counted, 0).sum(axis=0).tolist() == [len(gone), len(fresh), len(kept_old)]
        assert len(kept_old) == len(kept_new)
