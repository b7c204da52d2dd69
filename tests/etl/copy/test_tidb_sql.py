"""A live TiDB as a source: every row once, as it is, at one timestamp; its GC is held meanwhile."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from sluice.devstack.recording import SnapshotLabel
from sluice.etl.copy.bootstrap import BootstrapPlanner
from sluice.etl.copy.bootstrap_run import BootstrapSummary
from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.gc_safepoint import GcSafePoint
from sluice.etl.copy.sources import open_source
from sluice.etl.copy.tidb_sql import TidbAddress, TidbSql
from sluice.etl.copy.worker import make_loads
from sluice.etl.settings import Relay, Settings, Upstream
from sluice.tidb import PDClient
from sluice.tidb.codec.float import format_float
from sluice.tidb.column_types import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, FLAG_UNSIGNED
from sluice.tidb.schema import Column, Index, Table
from tests.devstack.cluster_harness import cluster, etcd
from tests.devstack.sql_harness import Port, port
from tests.etl.copy.copying import CLUSTER, RECORDING, definitions, settings_of
from tests.etl.copy.given_rows import NOW, serving
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.snapshots import differences
from tests.examples import examples


@pytest.fixture(scope="module")
def tidb() -> Iterator[Port]:
    with port("bootstrap", region_rows=700) as opened:
        yield opened


def source_of(opened: Port, ts: int) -> TidbSql:
    return TidbSql(TidbAddress("127.0.0.1", opened.server.port), ts)


def rows_of(source: TidbSql, table: Table) -> tuple[list[tuple[Any, ...]], int]:
    """All rows, and in how many chunks they came."""
    rows: list[tuple[Any, ...]] = []
    chunks = source.chunks(table)
    for chunk in chunks:
        for batch in open_source(json.loads(json.dumps(source.spec()))).read(chunk, table):
            columns = [
                c.cast(pa.large_binary()) if c.type == pa.large_string() else c
                for c in batch.columns
            ]
            rows += zip(*(column.to_pylist() for column in columns), strict=True)
    return rows, len(chunks)


def recorded(label: SnapshotLabel, full: str) -> list[dict[str, Any]]:
    path = RECORDING / "snapshots" / label.name / f"{quote(full, safe='._-')}.jsonl"
    text = (
        path.read_text()
        if path.exists()
        else gzip.decompress(Path(f"{path}.gz").read_bytes()).decode()
    )
    head, *lines = (json.loads(line) for line in text.splitlines())
    return [dict(zip(head["columns"], line, strict=True)) for line in lines]


def shown(column: Column, value: Any) -> Any:
    """A value as a snapshot has it."""
    if value is None:
        return None
    if column.kind == "bit":
        return int(value)
    if column.kind == "float":
        return format_float(value)
    if column.kind == "double":
        return float(value)
    return (
        value
        if isinstance(value, bytes)
        else f"{value:04}"
        if column.kind == "year"
        else str(value)
    )


def expected(column: Column, value: Any) -> Any:
    raw = (
        bytes.fromhex(value["hex"])
        if isinstance(value, dict)
        else None
        if value is None
        else str(value).encode()
    )
    if raw is None:
        return None
    if column.kind == "bit":
        return int.from_bytes(raw, "big")
    if column.kind == "double":
        return float(raw)
    return raw.decode() if column.kind in ("int", "year", "float") else raw


@pytest.mark.beyond_ci
@pytest.mark.slow
def test_every_table_is_what_the_first_and_the_last_snapshot_hold(tidb: Port) -> None:
    cut = 0
    first, *_, last = tidb.recording.labels
    for label in (first, last):
        source = source_of(tidb, label.ts)
        tables = {table.full_name: table for table in definitions(label.ts).tables}
        assert sorted(estimate.full_name for estimate in source.tables()) == sorted(label.tables)
        for full in label.tables:
            table = tables[full]
            if label is first:
                source.check_schema(table)
            rows, chunks = rows_of(source, table)
            cut += chunks > 3
            columns = table.stored_columns
            wanted = Counter(
                tuple(expected(c, row[c.name]) for c in columns) for row in recorded(label, full)
            )
            found = Counter(
                tuple(shown(c, v) for c, v in zip(columns, row, strict=True)) for row in rows
            )
            assert found == wanted, (label.name, full)
    assert cut >= 4


@pytest.mark.slow
def test_a_replica_begins_from_a_live_tidb(
    tidb: Port, mariadb: MariaDBServer, tmp_path: Path
) -> None:
    label = tidb.recording.label("dump_csv")
    source = source_of(tidb, label.ts)
    copy = BootstrapPlanner(settings_of(mariadb, tmp_path), source, definitions(label.ts), CLUSTER)
    plan = copy.plan()
    assert not plan.problems and not [note for note in plan.notes if "TIMESTAMP" in note]
    summary = copy.run(lambda chunk, table: make_loads(source.spec(), chunk, table))
    assert (summary.ts, summary.rows) == (label.ts, sum(label.tables.values()))
    assert differences(RECORDING, label.name, mariadb) == []


def _copied(dump: Path, settings: Settings) -> BootstrapSummary:
    source = DumplingFolder.open(str(dump))
    copy = BootstrapPlanner(settings, source, definitions(source.position), CLUSTER)
    return copy.run(lambda chunk, table: make_loads(source.spec(), chunk, table))


@pytest.mark.slow
def test_a_dump_whose_file_was_cut_where_a_row_ends_is_no_replica(
    tidb: Port, mariadb: MariaDBServer, tmp_path: Path
) -> None:
    dump = tmp_path / "dump"
    shutil.copytree(RECORDING / "dump-sql", dump)
    upstream = replace(Upstream("unused"), sql_host="127.0.0.1", sql_port=tidb.server.port)
    settings = replace(settings_of(mariadb, tmp_path), upstream=upstream)
    file = sorted(dump.glob("bank.ledger.*.sql"))[-1]
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    cut = lines[: len(lines) // 2]
    file.write_bytes(b"".join(cut[:-1]) + (cut[-1].rstrip(b",\n") + b";\n"))
    with pytest.raises(CopyError, match=r"bank\.ledger \([\d,]+ rows copied, [\d,]+ in TiDB\)"):
        _copied(dump, settings)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        assert cursor.execute("SELECT * FROM tidb_binlog.checkpoint") == 0
    mariadb.empty()
    file.write_bytes(whole)
    again = replace(settings, relay=Relay(f"file://{tmp_path}/again"))
    assert not [one for one in _copied(dump, again).warnings if "compared" in one]
    file.write_bytes(b"")
    with pytest.raises(CopyError, match=rf"{re.escape(file.name)} is empty"):
        DumplingFolder.open(str(dump))


@pytest.mark.slow
def test_a_copy_that_could_not_be_compared_says_so(mariadb: MariaDBServer, tmp_path: Path) -> None:
    summary = _copied(RECORDING / "dump-sql", settings_of(mariadb, tmp_path))
    (said,) = [one for one in summary.warnings if "compared" in one]
    assert "sql-host is missing" in said and "sluice verify" in said


@pytest.fixture(autouse=True)
def no_table_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TidbSql, "few_rows", 1)


KINDS: dict[str, tuple[Column, st.SearchStrategy[Any]]] = {
    "int": (Column(1, "k", 0, 8), st.integers(-(2**63), 2**63 - 1)),
    "unsigned": (Column(1, "k", 0, 8, FLAG_UNSIGNED), st.integers(0, 2**64 - 1)),
    "decimal": (
        Column(1, "k", 0, 0xF6, flen=20, decimal=3),
        st.integers(-(10**9), 10**9).map(lambda n: f"{n}.125"),
    ),
    "text": (
        Column(1, "k", 0, 15, flen=40, charset="utf8mb4", collate="utf8mb4_bin"),
        st.text(st.sampled_from("a\\'\"%_\n\0é😀 Z"), max_size=8).map(str.encode),
    ),
    "binary": (
        Column(1, "k", 0, 15, flen=40, charset="binary", collate="binary"),
        st.binary(max_size=8),
    ),
    "datetime": (
        Column(1, "k", 0, 12, decimal=6),
        st.datetimes().map(lambda t: f"{t.year:04}{t:-%m-%d %H:%M:%S.%f}"),
    ),
    "bit": (Column(1, "k", 0, 16, FLAG_UNSIGNED, flen=64), st.integers(0, 2**64 - 1)),
    "enum": (
        Column(1, "k", 0, 0xF7, charset="utf8mb4", collate="utf8mb4_bin", elems=("z", "b'", "a")),
        st.sampled_from(["z", "b'", "a", ""]),
    ),
}


def made_table(kinds: list[str], handle: str) -> Table:
    columns = []
    for number, kind in enumerate(kinds):
        column = KINDS[kind][0]
        flag = column.flag | FLAG_NOT_NULL | FLAG_PRIMARY_KEY
        fields = {name: getattr(column, name) for name in Column.__dataclass_fields__}
        columns.append(
            Column(
                **{
                    **fields,
                    "id": number + 1,
                    "name": f"k`{number}",
                    "offset": number,
                    "flag": flag,
                }
            )
        )
    columns.append(Column(99, "v", len(columns), 8))
    index = Index(
        1, "PRIMARY", tuple((c.name, c.offset, -1) for c in columns[:-1]), unique=True, primary=True
    )
    return Table(
        70,
        2,
        "s p",
        "t`",
        tuple(columns),
        () if handle == "int" else (index,),
        "utf8mb4",
        "utf8mb4_bin",
        pk_is_handle=handle == "int",
        is_common_handle=handle == "common",
    )


@limits(max_examples=examples(15))
@given(st.data())
def test_chunks_of_any_key_hold_every_row_once(data: st.DataObject) -> None:
    handle = data.draw(st.sampled_from(["int", "common", "heap"]))
    kinds = [data.draw(st.sampled_from(["int", "unsigned"]))] if handle == "int" else data.draw(
        st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3)
    )  # fmt: skip
    table = made_table(kinds, handle)
    keys = data.draw(
        st.lists(st.tuples(*(KINDS[kind][1] for kind in kinds)), max_size=12, unique=True)
    )
    rows = [
        [*key, n] + ([data.draw(st.integers(-5, 2**40))] if handle == "heap" else [])
        for n, key in enumerate(keys)
    ]
    with serving(table, rows, data.draw(st.integers(1, 4))) as address:
        found, chunks = rows_of(TidbSql(address, NOW - 1), table)
    assert sorted(row[-1] for row in found) == list(range(len(keys)))
    assert chunks >= 1
    as_read = [
        tuple(v.encode() if isinstance(v, str) else v for v in row[: len(kinds) + 1])
        for row in rows
    ]
    assert Counter(found) == Counter(as_read)


@pytest.mark.slow
def test_a_lost_table_or_another_definition_is_found_before_rows_are_read(tidb: Port) -> None:
    ts = tidb.recording.label("z_end").ts
    table = next(t for t in definitions(ts).tables if t.name == "account")
    other = Table.from_json({**table.to_json(), "columns": table.to_json()["columns"][:-1]})
    with pytest.raises(CopyError, match="are both of one cluster"):
        source_of(tidb, ts).check_schema(other)


def test_what_the_gc_has_dropped_stops_the_copy_and_says_why() -> None:
    with port("types") as opened:
        ts = opened.recording.label("end").ts
        source = source_of(opened, ts)
        opened.safe_point = ts + 1
        with pytest.raises(CopyError, match="GC was not held"):
            source.tables()


def test_a_password_comes_from_the_environment_and_is_in_no_spec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with port("types", users={"copier": "secret"}) as opened:
        address = TidbAddress("127.0.0.1", opened.server.port, "copier", "COPIER_PASSWORD")
        with pytest.raises(CopyError, match="no variable COPIER_PASSWORD"):
            TidbSql.now(address)
        monkeypatch.setenv("COPIER_PASSWORD", "secret")
        source = TidbSql.now(address)
        assert source.position > opened.recording.label("end").ts and "secret" not in json.dumps(
            source.spec()
        )
        monkeypatch.setenv("COPIER_PASSWORD", "wrong")
        with pytest.raises(CopyError, match=r"Access denied.*sql-user"):
            TidbSql.now(address)


def test_no_tidb_is_an_error_that_may_pass() -> None:
    with pytest.raises(CopyError, match=r"TiDB at 127\.0\.0\.1:1") as caught:
        TidbSql.now(TidbAddress("127.0.0.1", 1))
    assert caught.value.transient


def test_the_gc_is_held_and_given_back(tmp_path: Path) -> None:
    with etcd(tmp_path) as url, cluster(url) as started, PDClient(started.url) as pd:
        ts = pd.tso()
        with GcSafePoint(pd, "sluice-test", ts, ttl_s=60) as hold:
            assert started.post("/gc", safe_point=pd.tso()) == {"safe_point": ts}
        # a copy that paused may go on
        assert started.post("/gc", safe_point=pd.tso()) == {"safe_point": ts}
        hold.release()
        later = pd.tso()
        assert started.post("/gc", safe_point=later) == {"safe_point": later}
        with pytest.raises(CopyError, match="has dropped"), GcSafePoint(pd, "sluice-test", ts):
            pass


def test_a_hold_is_renewed_until_it_is_given_back() -> None:
    calls: list[tuple[int, int]] = []
    enough = threading.Event()

    class Recorder:
        def update_service_gc_safe_point(self, service: str, ttl_s: int, ts: int) -> int:
            calls.append((ttl_s, ts))
            if len(calls) == 3:
                enough.set()
            return ts

        def get_gc_safe_point(self) -> int:
            return 0

    pd: Any = Recorder()
    with GcSafePoint(pd, "sluice-test", 7, ttl_s=1) as hold:
        assert enough.wait(60)
    assert set(calls) == {(1, 7)}
    hold.release()
    assert calls[-1] == (0, 7)


def keyed(*kinds: str) -> Table:
    """A clustered table with a key of these kinds and one column more."""
    return made_table(list(kinds), "common")


@pytest.mark.parametrize(
    ("kinds", "keys"),
    [
        (("text",), [(f"user{n:06}",) for n in range(900)]),
        (("text",), [(f"{hashlib.md5(b'%d' % n).hexdigest()}",) for n in range(900)]),
        (("binary",), [(hashlib.md5(b"%d" % n).digest(),) for n in range(900)]),
        (("text", "int"), [("the same", n * n) for n in range(900)]),
        (("int", "text"), [(n // 100, f"é{n}") for n in range(900)]),
        (
            ("datetime",),
            [(f"2024-01-{1 + n // 30:02} 00:{n % 30:02}:00.000000",) for n in range(900)],
        ),
        (("decimal",), [(f"{n}.125",) for n in range(900)]),
    ],
    ids=["numbered", "hashes", "bytes", "the first is the same", "composite", "times", "decimals"],
)
def test_a_region_is_cut_inside_for_keys_of_text_and_of_several_columns(
    kinds: tuple[str, ...], keys: list[tuple[Any, ...]]
) -> None:
    table = keyed(*kinds)
    keys = sorted(keys)
    rows = [
        [*(k.encode() if kind == "text" else k for k, kind in zip(key, kinds)), n]
        for n, key in enumerate(keys)
    ]
    with serving(table, rows, 10_000) as address:
        source = TidbSql(address, NOW - 1)
        chunks = source.chunks(table)
        sizes = [sum(batch.num_rows for batch in source.read(chunk, table)) for chunk in chunks]
    assert sum(sizes) == 900 and len(sizes) in (2, 3)
    assert max(sizes) < 700


def test_a_table_of_few_rows_is_one_chunk_and_sizes_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TidbSql, "few_rows", 50)
    table = made_table(["int"], "int")
    for count, regions, chunks in ((0, 100, 1), (50, 100, 1), (51, 100, 3), (51, 30, 6)):
        with serving(table, [[n, n] for n in range(count)], regions) as address:
            found = TidbSql(address, NOW - 1).chunks(table)
        assert len(found) == chunks, (count, regions)
        assert all(chunk.bytes > 0 for chunk in found)
        assert sum(chunk.bytes for chunk in found) <= 2 * (64 << 20)
