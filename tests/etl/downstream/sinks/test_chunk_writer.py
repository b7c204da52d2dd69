"""A chunk of upstream rows does exactly what its job asks to a table downstream, or nothing."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.rules import Filter
from sluice.etl.downstream import (
    Checkpoint,
    CheckpointMovedError,
    CheckpointTable,
    ChunkResult,
    DownstreamError,
    MySQLSession,
)
from sluice.etl.downstream.sinks import AlignedChunkRows, ChunkLoad
from sluice.etl.downstream.sinks.mysql import MySQLSink
from sluice.etl.settings import Downstream
from sluice.relay import AlignedChunk
from sluice.relay.aligned_chunks import COMPARE, MISSING
from sluice.tidb.schema import Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import table
from tests.etl.tidb_stand_in import MYSQL, TIDB, Product, TiDBStandIn

C = 1 << 50
Rows = Sequence[Sequence[str | None]]
_CI = "collate utf8mb4_general_ci"
KEYED = table(
    1, "t", "id int not null", "u int", f"v varchar(20) {_CI}", primary="id", unique=("u",)
)
KEYED_SQL = (
    "CREATE TABLE d.t (id int PRIMARY KEY, u int UNIQUE, v varchar(20) CHARACTER SET utf8mb4"
    f" {_CI.upper()})"
)
HEAP = table(2, "t", "a int", "b varchar(20) collate utf8mb4_general_ci")


class Place:
    """A downstream with its checkpoint at C, and a sink that stands there."""

    def __init__(self, server: MariaDBServer, downstream: Downstream | None = None) -> None:
        server.empty()
        self.connection = server.connect()
        self.downstream = downstream or server.downstream
        self.sink = self.new_sink()
        self.sink._row.begin()
        self.sink._row.save(Checkpoint(C))
        self.run("CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")

    def new_sink(self) -> MySQLSink:
        session = MySQLSession(self.downstream)
        sink = MySQLSink(
            session, CheckpointTable.from_settings(session, self.downstream, 7), Filter()
        )
        sink.recover()
        return sink

    def run(self, *statements: str) -> None:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            cursor.execute("COMMIT")

    def rows(self, select: str = "SELECT * FROM d.t") -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(select)
            found = sorted((tuple(row) for row in cursor.fetchall()), key=repr)
            cursor.execute("COMMIT")
        return found

    def bring(
        self, of: Table, rows: Rows, job: str = "j", sink: MySQLSink | None = None, **more: Any
    ) -> ChunkResult:
        layout = LoadLayout(tuple(c.name for c in of.writable_columns), **more.pop("layout", {}))
        warnings = more.pop("warnings", 0)
        text = "".join(
            "\t".join("\\N" if v is None else v for v in row) + "\n" for row in rows
        ).encode()
        loads = [ChunkLoad(layout, text, len(rows), warnings)] if rows else []
        asked = AlignedChunk(
            C, job, 0, of.id, of.schema_name, of.name, **{"is_whole": True, **more}
        )
        chunk = AlignedChunkRows(asked, of, loads, layout.columns, frozenset(layout.hex))
        sink = sink or self.sink
        assert sink.why_not(asked) == ""
        return sink.write_chunk(chunk, lambda step, begun=False: None)


@pytest.fixture
def place(mariadb: MariaDBServer) -> Iterator[Place]:
    found = Place(mariadb)
    yield found
    found.sink.close()
    found.connection.close()


TYPES = {
    "i bigint unsigned": ("18446744073709551615", "1"),
    "de decimal(20,5)": ("-12345.67890", "0.00000"),
    "f float": ("1.1", "1.2"),
    "do double": ("-1.5e300", "0.1"),
    "y year": ("0000", "2020"),
    "da date": ("0000-00-00", "2020-02-29"),
    "dt datetime(6)": ("0000-00-00 00:00:00.000000", "2020-01-01 00:00:00.000001"),
    "ti timestamp(3)": ("0000-00-00 00:00:00.000", "2020-01-01 00:00:00.001"),
    "tm time(2)": ("-838:59:58.99", "00:00:00.01"),
    "c char(5) collate utf8mb4_general_ci": ("é", "e"),
    "vc varchar(5) collate utf8mb4_general_ci": ("a", "a "),
    "tx text collate utf8mb4_general_ci": ("x" * 2000 + "a", "x" * 2000 + "A"),
    "vb varbinary(5)": ("a", "a\\0"),
    "bl longblob": ("y" * 70_000, "y" * 69_999 + "z"),
    "en enum('a','b')": ("b", "a"),
    "se set('a','b')": ("a,b", ""),
    "js json": ('{"a": [1, 2.5]}', '{"a": [1, 2.50]}'),
}
SAME_DOCUMENT = "js json"
"""Its two values differ as text, and are one value where JSON is a type of its own."""


def test_every_type_arrives_and_any_other_value_is_seen_and_replaced(place: Place) -> None:
    of = table(1, "t", "id int not null", *TYPES, primary="id")
    place.run(
        f"CREATE TABLE d.t (id int PRIMARY KEY, {', '.join(f'{spec} NULL' for spec in TYPES)})"
    )
    ones = [["1", *(one for one, _ in TYPES.values())], ["2", *(None for _ in TYPES)]]
    assert place.bring(of, ones, "a") == ChunkResult(
        2, 0, 2, examples=("missing: id=1", "missing: id=2")
    )
    assert place.bring(of, ones, "b") == ChunkResult(2, 2)
    for number, (spec, (_, other)) in enumerate(TYPES.items()):
        if spec == SAME_DOCUMENT and place.sink._session.dialect.has_json_type:
            other = '{"a": [1, 2.75]}'
        for row, value in ((0, other), (0, None), (1, other)):
            rows = [list(each) for each in ones]
            rows[row][number + 1] = value
            job = f"{number}.{row}.{value is None}"
            seen = place.bring(of, rows, f"{job}.compare", how=COMPARE)
            assert (seen.replaced, seen.same) == (1, 1), (spec, value)
            assert place.bring(of, rows, job).replaced == 1, spec
            assert place.bring(of, rows, f"{job}.again") == ChunkResult(2, 2), spec
            assert place.bring(of, ones, f"{job}.back").replaced == 1, spec


def test_numbers_of_bits_bytes_and_enum_without_element_arrive(place: Place) -> None:
    of = table(
        1, "t", "id int not null", "b bit(9)", "x varbinary(9)", "e enum('a','b')", primary="id"
    )
    place.run("CREATE TABLE d.t (id int PRIMARY KEY, b bit(9), x varbinary(9), e enum('a','b'))")
    layout = {"bits": ("b",), "hex": ("x",)}
    rows = [["1", "257", "ff00c328", ""]]
    for job, same in (("a", 0), ("b", 1)):
        result = place.bring(of, rows, job, layout=layout, warnings=1)
        assert (result.same, result.inserted) == (same, 1 - same), result
    assert place.rows("SELECT id, b+0, HEX(x), e+0 FROM d.t") == [(1, 257, "FF00C328", 0)]


def test_only_the_range_changes_and_in_it_everything_does(place: Place) -> None:
    place.run(KEYED_SQL, "INSERT INTO d.t VALUES (1,1,'a'),(2,2,'b'),(3,3,'c'),(4,4,'d'),(5,5,'e')")
    result = place.bring(
        KEYED,
        [["2", "2", "b"], ["3", "30", "C"], ["9", "9", "z"]],
        condition="`id` > 1",
        key=("id",),
    )
    assert (result.same, result.inserted, result.replaced, result.deleted) == (1, 1, 1, 2)
    assert result.examples == (
        "missing: id=9",
        "differs: id=3",
        "not upstream: id=4",
        "not upstream: id=5",
    )
    assert place.rows() == [(1, 1, "a"), (2, 2, "b"), (3, 30, "C"), (9, 9, "z")]


@pytest.mark.parametrize("product", [TIDB, MYSQL], ids=lambda product: product.version)
def test_other_servers_of_the_protocol_do_the_same(
    own_mariadb: MariaDBServer, product: Product
) -> None:
    stand_in = TiDBStandIn(own_mariadb, product)
    with contextlib.closing(stand_in):
        place = Place(own_mariadb, stand_in.downstream)
        place.run(
            KEYED_SQL,
            "INSERT INTO d.t VALUES (1,1,'a'),(2,2,'b'),(3,3,'c'),(4,4,'d'),(8,9,'stale')",
        )
        rows = [["2", "2", "b"], ["3", "30", "C"], ["5", "9", "z"]]
        found = place.bring(KEYED, rows, condition="`id` > 1 AND `id` < 8", key=("id",))
        assert found == ChunkResult(3, 1, 1, 1, 1, 1, examples=found.examples)
        assert place.rows() == [(1, 1, "a"), (2, 2, "b"), (3, 30, "C"), (5, 9, "z")]
        place.run(
            "DROP TABLE d.t",
            "CREATE TABLE d.t (a int, b varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)",
        )
        assert place.bring(HEAP, [["1", "a"], ["1", "a"]], "heap").inserted == 2
        assert place.rows() == [(1, "a"), (1, "a")]
        place.sink.close()
        place.connection.close()


def test_unique_values_that_wander_inside_of_a_chunk_are_no_obstacle(place: Place) -> None:
    place.run(KEYED_SQL, "INSERT INTO d.t VALUES (1,1,'a'),(2,2,'b'),(3,3,'c')")
    result = place.bring(KEYED, [["1", "2", "a"], ["2", "3", "b"], ["3", "1", "c"]], is_whole=False)
    assert (result.replaced, result.declined) == (3, "")
    assert place.rows() == [(1, 2, "a"), (2, 3, "b"), (3, 1, "c")]


def test_a_row_outside_that_holds_a_unique_value_goes_only_if_the_job_brings_it_too(
    place: Place,
) -> None:
    place.run(KEYED_SQL, "INSERT INTO d.t VALUES (1,1,'a'),(8,2,'stale')")
    chunk = {"condition": "`id` < 5", "key": ("id",)}
    rows = [["1", "1", "a"], ["2", "2", "b"]]
    declined = place.bring(KEYED, rows, "part", is_whole=False, **chunk)
    assert "Duplicate entry '2'" in declined.declined and not declined.is_passing
    assert "Replace the whole table" in declined.declined
    assert place.rows() == [(1, 1, "a"), (8, 2, "stale")]
    assert place.bring(KEYED, rows, "whole", **chunk).displaced == 1
    assert place.rows() == [(1, 1, "a"), (2, 2, "b")]


def test_missing_adds_what_isnt_there_and_leaves_the_rest(place: Place) -> None:
    place.run(KEYED_SQL, "INSERT INTO d.t VALUES (1,1,'a'),(2,20,'mine'),(7,7,'extra')")
    result = place.bring(KEYED, [["1", "1", "a"], ["2", "2", "b"], ["3", "3", "c"]], how=MISSING)
    assert (result.same, result.inserted, result.kept, result.deleted) == (1, 1, 1, 0)
    assert place.rows() == [(1, 1, "a"), (2, 20, "mine"), (3, 3, "c"), (7, 7, "extra")]
    taken = place.bring(KEYED, [["4", "7", "d"]], "taken", how=MISSING)
    assert "Duplicate entry '7'" in taken.declined
    assert len(place.rows()) == 4


def test_comparing_writes_nothing_but_its_note(place: Place) -> None:
    place.run(KEYED_SQL, "INSERT INTO d.t VALUES (1,1,'a'),(2,2,'B'),(7,7,'extra')")
    before = place.rows()
    result = place.bring(KEYED, [["1", "1", "a"], ["2", "2", "b"], ["3", "3", "c"]], how=COMPARE)
    assert result == ChunkResult(
        3, 1, 1, 1, 1, examples=("missing: id=3", "differs: id=2", "not upstream: id=7")
    )
    assert place.rows() == before
    assert place.rows("SELECT job, at_ts FROM tidb_binlog.sluice_chunks") == [("j", C)]


def test_of_listed_rows_others_stay_whatever_they_are(place: Place) -> None:
    place.run(KEYED_SQL, "INSERT INTO d.t VALUES (1,1,'a'),(2,2,'x'),(7,7,'extra')")
    result = place.bring(KEYED, [["2", "2", "b"], ["3", "3", "c"]], listed=True, is_whole=False)
    assert (result.inserted, result.replaced, result.deleted) == (1, 1, 0)
    assert place.rows() == [(1, 1, "a"), (2, 2, "b"), (3, 3, "c"), (7, 7, "extra")]


def test_a_table_without_a_key_becomes_the_same_number_of_the_same_rows(place: Place) -> None:
    place.run(
        "CREATE TABLE d.t (a int, b varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci)"
    )
    place.run("INSERT INTO d.t VALUES (1,'a'),(1,'a'),(1,'A'),(2,NULL),(9,'x')")
    rows = [["1", "a"], ["1", "A"], ["1", "A"], ["2", None], ["2", None], [None, None]]
    seen = place.bring(HEAP, rows, "compare", how=COMPARE)
    assert (seen.same, seen.inserted, seen.deleted) == (3, 3, 2)
    assert place.bring(HEAP, rows).inserted == 3
    assert place.rows() == sorted(
        [(1, "a"), (1, "A"), (1, "A"), (2, None), (2, None), (None, None)], key=repr
    )
    assert place.bring(HEAP, rows, "again") == ChunkResult(6, 6)


@pytest.mark.parametrize(
    "more", [{"condition": "`a` > 1", "key": ("a",)}, {"listed": True}, {"how": MISSING}]
)
def test_a_table_without_a_key_is_brought_as_a_whole_or_not_at_all(
    place: Place, more: dict[str, Any]
) -> None:
    place.run("CREATE TABLE d.t (a int, b varchar(20))", "INSERT INTO d.t VALUES (1,'a')")
    assert "no key" in place.bring(HEAP, [["5", "x"]], **more).declined
    assert place.rows() == [(1, "a")]


def test_a_parent_that_is_replaced_takes_no_child_along(place: Place) -> None:
    place.run(
        KEYED_SQL,
        "CREATE TABLE d.child (id int PRIMARY KEY, FOREIGN KEY (id) REFERENCES d.t (id) ON DELETE"
        " CASCADE)",
        "INSERT INTO d.t VALUES (1,1,'a'),(2,2,'b')",
        "INSERT INTO d.child VALUES (1),(2)",
    )
    assert place.bring(KEYED, [["1", "1", "new"], ["2", "2", "b"]]).replaced == 1
    assert place.rows("SELECT * FROM d.child") == [(1,), (2,)]


def test_columns_that_only_the_downstream_has_keep_their_values_where_rows_are_as_upstream(
    place: Place,
) -> None:
    place.run(
        KEYED_SQL,
        "ALTER TABLE d.t ADD extra int DEFAULT 5",
        "INSERT INTO d.t VALUES (1,1,'a',7),(2,2,'x',8)",
    )
    assert place.bring(KEYED, [["1", "1", "a"], ["2", "2", "b"]]).replaced == 1
    assert place.rows() == [(1, 1, "a", 7), (2, 2, "b", 5)]


def test_text_that_is_no_utf8_makes_its_column_hold_bytes(place: Place) -> None:
    of = table(1, "t", "id int not null", "v varchar(20)", primary="id")
    place.run(
        "CREATE TABLE d.t (id int PRIMARY KEY, v varchar(20))", "INSERT INTO d.t VALUES (1, 'é')"
    )
    result = place.bring(of, [["1", "c3a9"], ["2", "ff"]], layout={"hex": ("v",)})
    assert (result.same, result.inserted) == (1, 1)
    assert place.rows("SELECT id, HEX(v) FROM d.t") == [(1, "C3A9"), (2, "FF")]


def test_computed_columns_are_the_servers(place: Place) -> None:
    of = table(1, "t", "id int not null", "v int", primary="id")
    place.run(
        "CREATE TABLE d.t (id int PRIMARY KEY, v int, g int AS (v + 1) STORED, w int AS (v + 2)"
        " VIRTUAL)"
    )
    assert place.bring(of, [["1", "10"]]).inserted == 1
    assert place.rows() == [(1, 10, 11, 12)]


def sql(*statements: str) -> Callable[[Place], None]:
    return lambda place: place.run(*statements)


TEXT_KEY = table(1, "t", "k varchar(20) collate utf8mb4_bin not null", "v int", primary="k")
REFUSED: dict[str, tuple[Callable[[Place], None], Table, dict[str, Any], str]] = {
    "no table": (sql(), KEYED, {}, "there is no table d.t"),
    "a column is lacking": (
        sql("CREATE TABLE d.t (id int PRIMARY KEY, v varchar(9))"),
        KEYED,
        {},
        "lacks the columns u",
    ),
    "no transactions": (sql(KEYED_SQL + " ENGINE=MyISAM"), KEYED, {}, "storage engine MyISAM"),
    "rows twice": (
        sql(
            "CREATE TABLE d.t (id int, u int, v varchar(20) COLLATE utf8mb4_general_ci)",
            "INSERT INTO d.t VALUES (1,1,'a'),(1,1,'a')",
        ),
        KEYED,
        {},
        "holds rows twice",
    ),
    "another order": (
        sql("CREATE TABLE d.t (k varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY, v int)"),
        TEXT_KEY,
        {"condition": "`k` >= 'a'", "key": ("k",)},
        r"d\.t\.k has the collation utf8mb4_bin upstream",
    ),
    "not of the key": (
        sql(KEYED_SQL),
        KEYED,
        {"condition": "`u` > 1", "key": ("u",)},
        "d.t.u is no column of its key",
    ),
    "rows outside of the range": (
        sql(KEYED_SQL),
        KEYED,
        {"condition": "`id` > 5", "key": ("id",)},
        "of 1 row that the upstream has where `id` > 5",
    ),
    "a value that doesn't fit": (
        sql("CREATE TABLE d.t (id int PRIMARY KEY, u int, v int)"),
        KEYED,
        {},
        "Incorrect integer value",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_downstream_cant_take_is_declined_with_the_reason_and_nothing_changes(
    place: Place, case: str
) -> None:
    prepare, of, more, said = REFUSED[case]
    prepare(place)
    before = place.rows() if case != "no table" else []
    rows = [["1", "7"]] if of is TEXT_KEY else [["1", "1", "a"]]
    result = place.bring(of, rows, **more)
    assert re.search(said, result.declined), result.declined
    assert not result.is_passing
    assert (place.rows() if case != "no table" else []) == before
    assert place.sink.find_result(AlignedChunk(C, "j", 0, 1, "d", "t")) == result


def test_text_keys_that_the_downstream_holds_to_be_the_same_are_declined(place: Place) -> None:
    place.run(
        "CREATE TABLE d.t (k varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY"
        " KEY, v int)"
    )
    result = place.bring(TEXT_KEY, [["a", "1"], ["A", "2"]])
    assert "same under its collation" in result.declined
    assert place.rows() == []


def test_what_was_done_is_not_done_again(place: Place) -> None:
    place.run(KEYED_SQL)
    first = place.bring(KEYED, [["1", "1", "a"]])
    place.run("DELETE FROM d.t")
    assert place.bring(KEYED, [["1", "1", "a"]]) == first
    assert place.rows() == []
    assert (
        place.sink.decline(AlignedChunk(C, "j", 0, 1, "d", "t"), "too late", is_passing=True)
        == first
    )


def test_a_process_that_was_taken_over_from_writes_no_chunk(place: Place) -> None:
    place.run(KEYED_SQL)
    with contextlib.closing(place.new_sink()):
        with pytest.raises(DownstreamError) as caught:  # its session was ended
            place.bring(KEYED, [["1", "1", "a"]])
        assert caught.value.transient
        with pytest.raises(CheckpointMovedError):
            place.sink.recover()
    assert place.rows() == []


def test_with_changes_behind_the_checkpoint_that_may_be_there_nothing_can_be_written(
    place: Place,
) -> None:
    asked = AlignedChunk(C, "j", 0, 1, "d", "t")
    assert place.sink.why_not(asked) == ""
    assert "checkpoint is at" in place.sink.why_not(AlignedChunk(C + 1, "j", 0, 1, "d", "t"))
    place.sink._row.change(Checkpoint(C, consistent=False, safe_until=C + 9))
    assert "may be on" in place.sink.why_not(asked)
