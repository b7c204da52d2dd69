"""Changes of the archive and the relay log, as Spark's workers read them, against recordings."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from sluice.etl.history.archive import archive_through
from sluice.etl.settings import Settings
from sluice.relay import RelayLog
from sluice.spark import ChangesError, SluiceDataSource, portions
from sluice.spark.data_source import ChangeReader
from sluice.spark.query import ChangeQuery
from sluice.tidb.rows import encode_insert
from tests.etl.history.archive.archiving import LocalJobs, settings_of
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.story import Story, column, table, wider
from tests.examples import examples
from tests.spark.folded import differences, snapshot_of

Row = dict[str, Any]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A recording, of which the archive has the first half and the relay log all."""
    return _landed(tmp_path_factory.mktemp("relay"), archived="a_loaded", through="c_mid")


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The same of its beginning."""
    return _landed(tmp_path_factory.mktemp("relay"), archived="a_loaded", through="b_mid")


def _landed(folder: Path, archived: str, through: str) -> Settings:
    url = f"file://{folder}"
    ends = {label: snapshot_of(RECORDINGS / "shop", label)["ts"] for label in (archived, through)}
    land(RECORDINGS / "shop", url, 100, through=ends[through])
    pipeline = settings_of(url)
    archive_through(pipeline, ends[archived], jobs=LocalJobs(pipeline))
    return pipeline


def source(settings: Settings, name: str, **options: Any) -> SluiceDataSource:
    given = {key: str(value) for key, value in options.items()}
    return SluiceDataSource({"relay": settings.relay.url, "table": name, **given})


def load(of: SluiceDataSource, schema: StructType | None = None, filters: Any = ()) -> list[Row]:
    """What Spark would do: the source and its reader travel as pickles."""
    wanted = schema or of.schema()
    reader = pickle.loads(pickle.dumps(of)).reader(wanted)
    left = list(reader.pushFilters(list(filters)))
    assert not left or filters
    rows = read(pickle.loads(pickle.dumps(reader)))
    assert all(list(row) == wanted.names for row in rows)
    return rows


def read(reader: ChangeReader) -> list[Row]:
    return [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


@pytest.mark.quick_cases("b_mid")
@pytest.mark.parametrize("label", ["a_loaded", "b_mid"])
def test_folded_by_key_the_changes_through_a_moment_are_what_the_cluster_held(
    shop: Settings, label: str
) -> None:
    snapshot = snapshot_of(RECORDINGS / "shop", label)
    for name in snapshot["tables"]:
        if label == "a_loaded" and not snapshot["tables"][name]:
            continue  # it was created later
        rows = load(source(shop, name, until=snapshot["ts"]))
        assert differences(rows, RECORDINGS / "shop", label, name) == [], name


@pytest.mark.slow
def test_values_of_every_type_are_the_clusters(tmp_path: Path) -> None:
    land(RECORDINGS / "types", f"file://{tmp_path}", 97)
    pipeline = settings_of(f"file://{tmp_path}")
    snapshot = snapshot_of(RECORDINGS / "types", "end")
    for name in snapshot["tables"]:
        rows = load(source(pipeline, name))
        assert differences(rows, RECORDINGS / "types", "end", name) == [], name


@pytest.mark.slow
def test_each_change_comes_once_whatever_the_portions_are(
    shop: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load(source(shop, "bank.ledger"))
    monkeypatch.setattr(portions, "PORTION_CHANGES", 150)
    of = source(shop, "bank.ledger")
    reader = of.reader(of.schema())
    assert len(reader.partitions()) > 10
    assert _identities(load(of)) == _identities(whole)


@pytest.mark.slow
def test_each_change_comes_once_from_ranges_that_follow_one_another(little: Settings) -> None:
    schema = source(little, "bank.cart").schema()
    whole = _identities(load(source(little, "bank.cart")))
    past = RelayLog.open(little.relay.url)
    first, last = past.first(), past.last()
    assert first is not None and last is not None
    moments = st.lists(st.integers(first.lo, last.hi), max_size=6)

    @settings(max_examples=examples(25))
    @given(moments)
    def ranges_hold_all(cuts: list[int]) -> None:
        bounds = sorted({first.lo, *cuts, last.hi})
        found: list[Any] = []
        for since, until in itertools.pairwise(bounds):
            some = source(little, "bank.cart", since=since, until=until)
            found += _identities(load(some, schema))
        assert sorted(found) == whole

    ranges_hold_all()


def _identities(rows: list[Row]) -> list[Any]:
    found = sorted((r["_commit_ts"], r["_start_ts"], r["_pos"], r["_op"]) for r in rows)
    assert len(set(found)) == len(found)
    return found


@pytest.fixture
def told(tmp_path: Path) -> Story:
    return Story(None, tmp_path)  # type: ignore[arg-type] # nothing is applied


WIDE = table(21, "t", "id int not null", "a varchar(10)", "n int", primary="id")


def test_columns_are_those_of_the_table_at_until_and_follow_renames(told: Story) -> None:
    told.create(WIDE, "CREATE TABLE t")
    told.insert(WIDE, {"id": 1, "a": "x", "n": 5})
    before = _last(told)
    renamed = replace(
        WIDE, columns=(WIDE.columns[0], replace(WIDE.columns[1], name="b"), *WIDE.columns[2:])
    )
    told.statement(12, "ALTER TABLE t RENAME COLUMN a TO b", renamed)
    longer = wider(renamed, column(4, "m decimal(10,2)"))
    told.statement(5, "ALTER TABLE t ADD m", longer)
    told.insert(longer, {"id": 2, "b": "y", "n": 6, "m": "1.50"})
    pipeline = settings_of(told.url)
    names = [
        f.name for f in source(pipeline, "d.t", until=before).schema() if not f.name.startswith("_")
    ]
    assert names == ["id", "a", "n"]
    rows = load(source(pipeline, "D.T"))
    assert [(r["id"], r["b"], r["n"], str(r["m"])) for r in rows] == [
        (1, "x", 5, "None"),
        (2, "y", 6, "1.50"),
    ]


def test_a_schema_of_ones_own_is_matched_by_names_and_refuses_what_it_cant_hold(
    told: Story,
) -> None:
    told.create(WIDE, "CREATE TABLE t")
    told.insert(WIDE, {"id": 1, "a": "x", "n": 5})
    pipeline = settings_of(told.url)
    schema = StructType().add("n", "string").add("_op", "string").add("nosuch", "integer")
    assert load(source(pipeline, "d.t"), schema) == [{"n": "5", "_op": "insert", "nosuch": None}]
    with pytest.raises(ChangesError, match="values of a were string, and don't fit int32"):
        load(source(pipeline, "d.t"), StructType().add("a", "integer"))


def test_rows_of_a_truncated_or_renamed_table_are_those_under_the_name_of_then(told: Story) -> None:
    told.create(WIDE, "CREATE TABLE t")
    told.insert(WIDE, {"id": 1, "a": "x", "n": 5})
    again = replace(WIDE, id=22)
    told.statement(11, "TRUNCATE TABLE t", 21, again)
    told.changes((WIDE, 0, encode_insert(WIDE, {"id": 9, "a": "late", "n": 1})))
    told.insert(again, {"id": 1, "a": "z", "n": 7})
    told.statement(14, "RENAME TABLE t TO u", replace(again, name="u"))
    told.insert(replace(again, name="u"), {"id": 2, "a": "u", "n": 8})
    pipeline = settings_of(told.url)
    assert [(r["id"], r["a"]) for r in load(source(pipeline, "d.t"))][-1] == (1, "z")
    assert [(r["id"], r["a"]) for r in load(source(pipeline, "d.u"))] == [(2, "u")]


def test_what_isnt_there_any_more_or_not_yet_is_refused_and_named(shop: Settings) -> None:
    past = RelayLog.open(shop.relay.url)
    first, last = past.first(), past.last()
    assert first is not None and last is not None
    with pytest.raises(ChangesError, match="is in neither"):
        load(source(shop, "bank.ledger", since=first.lo - 1))
    with pytest.raises(ChangesError, match="can't be had yet"):
        load(source(shop, "bank.ledger", until=last.hi + 1))
    with pytest.raises(ChangesError, match=r"no change and no DDL of a table bank\.nosuch"):
        source(shop, "bank.nosuch").schema()
    with pytest.raises(ChangesError, match='"table" is missing'):
        SluiceDataSource({"relay": shop.relay.url}).schema()
    with pytest.raises(ChangesError, match='"archive" needs "relay"'):
        SluiceDataSource({"archive": "file:///x", "table": "a.b"}).schema()


def _last(told: Story) -> int:
    last = RelayLog.open(told.url).last()
    assert last is not None
    return last.hi


@pytest.mark.parametrize("name", ["shop.*", "shop.order_?"])
def test_a_pattern_is_refused_with_the_function_that_takes_one(name: str) -> None:
    with pytest.raises(ChangesError, match="a pattern: a frame has the columns of one") as caught:
        ChangeQuery.from_options({"table": name, "relay": "file:///relay"})
    assert f"tables_as_of(spark, moment, {name!r})" in str(caught.value.hint)


def test_a_table_whose_name_looks_like_a_pattern_is_named_in_backquotes() -> None:
    query = ChangeQuery.from_options({"table": "shop.`a*`", "relay": "file:///relay"})
    assert query.table == ("shop", "a*")
