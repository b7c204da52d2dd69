"""Statements that readers of a TiDB send, and its answers: each was measured on a TiDB 6.6."""

import ssl
import subprocess
from itertools import pairwise

import pymysql
import pytest
from pymysql.constants import FIELD_TYPE

from sluice.tidb.tso import compose, physical_ms
from tests.devstack.sql_harness import TEXT, port


@pytest.fixture(scope="module")
def types():
    with port("types", region_rows=2) as made:
        yield made


@pytest.fixture(scope="module")
def shop():
    with port("shop") as made:
        yield made


def all_of(opened, statement, ts=None, **more):
    with opened.cursor(ts, **more) as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def refused(opened, statement, ts=None):
    with opened.cursor(ts) as cursor, pytest.raises(pymysql.MySQLError) as caught:
        cursor.execute(statement)
        cursor.fetchall()
    return caught.value.args


# ---- time ----------------------------------------------------------------------------------------


def test_master_status_gives_a_fresh_tso(shop):
    name, position, *_ = all_of(shop, "SHOW MASTER STATUS")[0]
    assert (name, int(position)) == ("tidb-binlog", shop.now)


def test_the_start_of_a_transaction_is_known_inside_of_it_only(shop):
    with shop.cursor() as cursor:
        cursor.execute("SELECT @@tidb_current_ts")
        assert cursor.fetchone() == ("0",)
        cursor.execute("BEGIN")
        cursor.execute("SELECT @@tidb_current_ts")
        assert int(cursor.fetchone()[0]) > shop.recording.label("e_end").ts
        cursor.execute("COMMIT")
        cursor.execute("SELECT @@tidb_current_ts")
        assert cursor.fetchone() == ("0",)


@pytest.mark.slow
def test_a_session_reads_the_past_until_it_is_told_not_to(shop):
    label = shop.recording.label("b_mid")
    counts = {
        name: count for full, count in label.tables.items() for name in [full.partition(".")[2]]
    }
    with shop.cursor(label.ts) as cursor:
        for name, count in counts.items():
            cursor.execute(f"SELECT COUNT(*) FROM bank.{name}")
            assert cursor.fetchone() == (count,)
        cursor.execute("SET @@tidb_snapshot = ''")
        cursor.execute("SELECT COUNT(*) FROM bank.ledger")
        assert cursor.fetchone() == (shop.recording.label("e_end").tables["bank.ledger"],)


def test_a_commit_is_seen_from_its_timestamp_on_and_not_before(types):
    commits = sorted(
        t.commit_ts
        for t in types.recording.transactions().values()
        if t.commit_ts and not t.ddl_job_id
    )
    created = min(ts for ts in commits if types.versions.catalog(ts).find("types", "times"))
    with types.cursor() as cursor:

        def count(ts):
            cursor.execute(f"SET @@tidb_snapshot = '{ts}'")
            cursor.execute("SELECT COUNT(*) FROM types.times")
            return cursor.fetchone()[0]

        grown = next(ts for ts in commits if ts >= created and count(ts))
        assert (count(grown - 1), count(grown)) == (0, 1)
        assert count(commits[-1]) == 5


def test_the_schema_is_that_of_the_moment():
    with port("edges") as edges:
        early, late = edges.recording.label("a_exchange").ts, edges.recording.label("b_change").ts
        assert refused(edges, "SELECT * FROM Edges.ch", early)[0] == 1146
        assert (
            len(all_of(edges, "SELECT * FROM Edges.ch", late))
            == edges.recording.label("b_change").tables["Edges.ch"]
        )


@pytest.mark.slow
def test_a_snapshot_may_be_given_as_a_time_in_the_sessions_zone(shop):
    ts = shop.recording.label("c_mid").ts
    with shop.cursor() as cursor:
        cursor.execute(f"SELECT TIDB_PARSE_TSO({ts})")
        (in_utc,) = cursor.fetchone()
        cursor.execute("SET time_zone = '+02:00'")
        cursor.execute(f"SELECT TIDB_PARSE_TSO({ts})")
        (in_berlin,) = cursor.fetchone()
        assert in_utc != in_berlin
        cursor.execute(f"SET tidb_snapshot = '{in_berlin}'")
        cursor.execute("SELECT COUNT(*) FROM bank.ledger")
        (count,) = cursor.fetchone()
    assert (count,) == all_of(shop, "SELECT COUNT(*) FROM bank.ledger", compose(physical_ms(ts)))[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        "SELECT COUNT(*) FROM bank.ledger AS OF TIMESTAMP '{}'",
        "START TRANSACTION READ ONLY AS OF TIMESTAMP '{}'",
    ],
)
def test_one_statement_or_transaction_reads_as_of_a_time(shop, how):
    ts = shop.recording.label("c_mid").ts
    (time,) = all_of(shop, f"SELECT TIDB_PARSE_TSO({ts})")[0]
    with shop.cursor() as cursor:
        cursor.execute(how.format(time))
        if how.startswith("START"):
            cursor.execute("SELECT COUNT(*) FROM bank.ledger")
        found = cursor.fetchone()
    assert found == all_of(shop, "SELECT COUNT(*) FROM bank.ledger", compose(physical_ms(ts)))[0]


def test_what_the_gc_has_dropped_cannot_be_read():
    with port("types") as types:
        ts = types.recording.label("end").ts
        with types.cursor(ts) as cursor:
            types.safe_point = ts + 1
            with pytest.raises(pymysql.MySQLError, match="GC life time is shorter") as caught:
                cursor.execute("SELECT * FROM types.ints")
            assert caught.value.args[0] == 9006
        number, text = refused(types, f"SET @@tidb_snapshot = '{ts}'")
        assert number == 8055 and text.startswith("snapshot is older than GC safe point 20")
        assert len(all_of(types, "SELECT * FROM types.ints", ts + 1))
        shown = dict(all_of(types, "SELECT variable_name, variable_value FROM mysql.tidb"))
        assert shown["tikv_gc_safe_point"] == shown["tikv_gc_last_run_time"] != ""


def test_the_future_cannot_be_read(shop):
    assert "future time" in refused(shop, f"SET @@tidb_snapshot = '{shop.now + (1 << 40)}'")[1]


def test_nothing_is_written(shop):
    assert (
        "tidb_snapshot"
        in refused(shop, "INSERT INTO bank.ledger VALUES (1)", shop.recording.label("e_end").ts)[1]
    )
    assert "takes no DELETE" in refused(shop, "DELETE FROM bank.ledger")[1]


def test_what_never_happened_is_not_seen():
    with port("types", limit=lambda: 0) as types:
        assert all_of(
            types, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'types'"
        ) == ((0,),)


# ---- cutting a table -----------------------------------------------------------------------------


def test_information_schema_tells_how_tables_are_kept(types):
    found = {
        name: (kind, sharding)
        for name, kind, sharding in all_of(
            types,
            "SELECT table_name, tidb_pk_type, tidb_row_id_sharding_info FROM"
            " information_schema.TABLES WHERE table_schema = 'types'",
        )
    }
    assert found["ints"] == ("CLUSTERED", "NOT_SHARDED(PK_IS_HANDLE)")
    assert found["pk_cl"] == ("CLUSTERED", "NOT_SHARDED")
    assert found["pk_nc"] == found["nopk"] == ("NONCLUSTERED", "NOT_SHARDED")
    assert found["ar"] == ("CLUSTERED", "PK_AUTO_RANDOM_BITS=5")
    ids = dict(
        all_of(
            types,
            "SELECT tidb_table_id, table_rows FROM information_schema.tables WHERE"
            " table_schema='types'",
        )
    )
    assert len(ids) == 35 and set(ids.values()) == {0}


def test_rows_without_a_clustered_key_have_a_row_id(types):
    rows = all_of(types, "SELECT _tidb_rowid, a FROM types.nopk ORDER BY _tidb_rowid")
    assert len(rows) == 3 and len({rowid for rowid, _ in rows}) == 3
    (first, _), *_ = rows
    assert len(all_of(types, f"SELECT * FROM types.nopk WHERE _tidb_rowid > {first}")) == 2
    assert {len(row) for row in all_of(types, "SELECT * FROM types.nopk")} == {2}
    assert refused(types, "SELECT _tidb_rowid FROM types.ints") == (
        1054,
        "Unknown column '_tidb_rowid' in 'field list'",
    )


def test_table_samples_give_the_first_row_of_each_region(types):
    ids = [row[0] for row in all_of(types, "SELECT id FROM types.ints")]
    assert [
        row[0] for row in all_of(types, "SELECT id FROM types.ints TABLESAMPLE REGIONS()")
    ] == ids[::2]


@pytest.mark.parametrize(
    "where, wanted",
    [
        ("(a > 'x' OR (a = 'x' AND b > 1))", 0),
        ("(a > 'a' OR (a = 'a' AND b > 1)) AND (a < 'b' OR (a = 'b' AND b <= 20))", 1),
        ("(a, b) > ('a', 1) AND (a, b) <= ('b', 20)", 1),
        ("a >= 'a' AND a < 'b'", 1),
        ("a IN ('a', 'b') AND b BETWEEN 1 AND 20", 2),
        ("NOT a = 'a' AND v IS NOT NULL", 1),
        ("a LIKE '_' OR v <=> NULL", 2),
        ("a = x'61'", 1),
        ("a = 'a ' -- blanks at the end don't count\n", 1),
    ],
)
def test_key_ranges_are_conditions_over_the_key(types, where, wanted):
    assert all_of(types, f"SELECT COUNT(*) FROM types.pk_nc WHERE {where}") == ((wanted,),)


def test_ranges_cover_every_row_once(shop):
    ts = shop.recording.label("e_end").ts
    total = shop.recording.label("e_end").tables["bank.ledger"]
    with shop.cursor(ts) as cursor:
        cursor.execute("SELECT MIN(id), MAX(id) FROM bank.ledger")
        low, high = cursor.fetchone()
        bounds = [low + (high - low + 1) * n // 3 for n in range(4)]
        counts = []
        for begin, end in pairwise(bounds):
            cursor.execute(
                "SELECT COUNT(*) FROM bank.ledger WHERE id >= %s AND id < %s", (begin, end)
            )
            counts.append(cursor.fetchone()[0])
    assert sum(counts) == total


def test_the_next_page_begins_after_the_last_key(shop):
    ts, seen, last = shop.recording.label("b_mid").ts, [], -1
    with shop.cursor(ts) as cursor:
        while True:
            cursor.execute(
                "SELECT id FROM bank.account WHERE id > %s ORDER BY id LIMIT 37", (last,)
            )
            page = [row[0] for row in cursor.fetchall()]
            if not page:
                break
            seen, last = seen + page, page[-1]
    assert len(seen) == shop.recording.label("b_mid").tables["bank.account"] and seen == sorted(
        set(seen)
    )


def test_collated_keys_compare_by_their_collation(types):
    everything = all_of(types, "SELECT k, k2 FROM types.co_utf8mb4_general_ci ORDER BY k")
    (first, _), *_ = everything
    assert all_of(
        types, f"SELECT k FROM types.co_utf8mb4_general_ci WHERE k = {first.swapcase()!r}"
    )
    assert not all_of(types, f"SELECT k FROM types.co_utf8mb4_bin WHERE k = {first.swapcase()!r}")


def test_a_reader_sets_what_helps_it(types):
    with types.cursor() as cursor:
        for name, value in [
            ("tidb_isolation_read_engines", "'tikv'"),
            ("tidb_distsql_scan_concurrency", "5"),
            ("tidb_replica_read", "'follower'"),
            ("tidb_mem_quota_query", "1048576"),
            ("max_execution_time", "0"),
        ]:
            cursor.execute(f"SET SESSION {name} = {value}")
            cursor.execute(f"SELECT @@{name}")
            assert str(cursor.fetchone()[0]) == value.strip("'")
        cursor.execute(
            "SELECT /*+ USE_INDEX(nopk) */ a FROM types.nopk FORCE INDEX (`PRIMARY`) WHERE a IS"
            " NULL"
        )
    assert refused(types, "SET tidb_no_such = 1") == (
        1193,
        "Unknown system variable 'tidb_no_such'",
    )


# ---- about the cluster ---------------------------------------------------------------------------


def test_the_cluster_says_how_it_writes_binlogs(types):
    assert all_of(types, "SELECT binlog_status FROM information_schema.TIDB_SERVERS_INFO") == (
        ("On",),
    )
    config = {
        row[2]: row[3]
        for row in all_of(types, "SHOW CONFIG WHERE type='tidb' AND name LIKE 'binlog%'")
    }
    assert config["binlog.enable"] == "true" and config["binlog.ignore-error"] == "false"
    wanted = "SELECT variable_value FROM mysql.tidb WHERE variable_name = 'new_collation_enabled'"
    assert all_of(types, wanted) == (("True",),)


@pytest.mark.parametrize(
    "statement, number",
    [
        ("SELECT * FROM types.no_such", 1146),
        ("SELECT no_such FROM types.ints", 1054),
        ("SELECT * FORM types.ints WHERE", 1064),
        ("SELECT * FROM ints", 1046),
        ("USE nowhere", 1049),
        ("SELECT NO_SUCH(1)", 1305),
    ],
)
def test_errors_have_tidbs_numbers(types, statement, number):
    assert refused(types, statement)[0] == number


# ---- values --------------------------------------------------------------------------------------


def described(opened, statement):
    with opened.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return {field.name: field for field in cursor._result.fields}


def test_headers_tell_types_flags_and_character_sets(types):
    ints = described(types, "SELECT * FROM types.ints")
    assert (ints["id"].type_code, ints["id"].charsetnr) == (FIELD_TYPE.LONG, 63)
    assert ints["bu"].type_code == FIELD_TYPE.LONGLONG and ints["bu"].flags & 32
    assert ints["b17"].type_code == FIELD_TYPE.BIT and ints["y"].type_code == FIELD_TYPE.YEAR
    strs = described(types, "SELECT * FROM types.strs")
    assert strs["v"].type_code == FIELD_TYPE.VAR_STRING and strs["v"].charsetnr == 46
    assert strs["vb"].charsetnr == strs["lb"].charsetnr == 63
    assert strs["e"].type_code == FIELD_TYPE.STRING and strs["e"].flags & 256
    assert strs["st"].type_code == FIELD_TYPE.STRING and strs["st"].flags & 2048
    assert strs["j"].type_code == FIELD_TYPE.JSON and strs["v"].length == 255 * 4
    decimals = described(types, "SELECT * FROM types.decs")
    assert (decimals["d65"].type_code, decimals["d65"].scale) == (FIELD_TYPE.NEWDECIMAL, 30)
    assert (
        described(types, "SELECT f + 0e0 AS f FROM types.decs")["f"].type_code == FIELD_TYPE.DOUBLE
    )


def test_a_float_in_an_expression_keeps_all_its_digits(types):
    shown = [
        row[0] for row in all_of(types, "SELECT f + 0e0 FROM types.decs WHERE f > 1e38", conv=TEXT)
    ]
    assert shown and all(len(text) > 12 for text in shown)


def test_computed_decimals_keep_all_their_digits(types):
    """A DECIMAL has up to 65 digits; Python's own arithmetic rounds to 28."""
    many = "99999999999999999999999999.7978862642"
    found = all_of(types, f"SELECT -{many}, {many} - 0.0000000001, -{many} = -{many}9")
    assert [str(value) for value in found[0]] == [f"-{many}", many[:-1] + "1", "0"]


def test_a_remainder_has_the_sign_of_what_is_divided(types):
    found = all_of(types, "SELECT -1 % 7, 8 % -3, -9223372036854775808 % 7, -1.5 % 1, -7e0 % 2")
    assert [float(value) for value in found[0]] == [-1, 2, -1, -0.5, -1]


def test_timestamps_are_shown_in_the_sessions_zone(types):
    wanted = "SELECT ts6, dt6 FROM types.times WHERE id = 1"
    (ts, dt), *_ = all_of(types, wanted, conv=TEXT)
    with types.cursor(conv=TEXT) as cursor:
        cursor.execute("SET time_zone = '+05:30'")
        cursor.execute(wanted)
        assert cursor.fetchone() == ("1970-01-01 05:30:01.000001", dt)
    assert ts == "1970-01-01 00:00:01.000001"


# ---- connections ---------------------------------------------------------------------------------


def test_rows_leave_before_the_last_is_read(types):
    with (
        types.connect(cursorclass=pymysql.cursors.SSCursor) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT id, b FROM types.bigrow")
        big = cursor.fetchone()
        assert len(big[1]) >= 2_000_000


def test_the_password_is_checked():
    with port("types", users={"copier": "secret"}) as types:
        with types.connect(user="copier", password="secret") as connection:
            connection.ping()
        for user, password in [("copier", "wrong"), ("copier", ""), ("root", "")]:
            with pytest.raises(pymysql.OperationalError) as caught:
                types.connect(user=user, password=password)
            assert caught.value.args[0] == 1045


def test_connections_may_be_encrypted(tmp_path):
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        key,
        "-out",
        cert,
        "-days",
        "2",
    ]
    subprocess.run(
        [*command, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with port("types", tls=context) as types, types.connect(ssl={"ca": str(cert)}) as connection:
        assert isinstance(connection._sock, ssl.SSLSocket)
        with connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM types.ints")
            assert cursor.fetchone() == (4,)


@pytest.mark.slow
def test_now_has_as_many_digits_behind_the_second_as_it_is_asked_for(shop):
    (times,) = all_of(shop, "SELECT NOW(), NOW(3), NOW(6)")
    assert [len(time) for time in times] == [19, 23, 26]
