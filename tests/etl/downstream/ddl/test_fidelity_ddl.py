"""DDL that no recording holds: what TiDB sends for it, run against a real server, ends in what the
upstream has.
"""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.changes.dialect import Dialect
from sluice.etl.downstream.ddl import DdlError
from sluice.etl.downstream.ddl._generate import index_definition
from sluice.tidb.schema import Index, Schema, Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, column, partitioned, table, wider


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    return Story(mariadb, tmp_path)


def simple(story: Story, number: int, name: str) -> Table:
    return story.create(
        table(number, name, "id int", primary="id"), f"CREATE TABLE `{name}` (`id` INT PRIMARY KEY)"
    )


def test_tables_keep_their_capitals_whatever_the_statements_and_jobs_write(story: Story) -> None:
    old = story.create(
        table(10, "MyTab", "Id int", "V varchar(20)", primary="Id"),
        "CREATE TABLE `MyTab` (`Id` INT PRIMARY KEY,`V` VARCHAR(20))",
    )
    story.insert(old, {"Id": 1, "V": "a"})
    new = wider(old, column(3, "c int"))
    story.statement(5, "ALTER TABLE `MYTAB` ADD COLUMN `c` INT", new, name="mytab")
    story.insert(new, {"Id": 2, "V": "b", "c": 3})
    indexed = replace(new, indexes=(Index(2, "K", (("V", 1, -1),)),))
    story.statement(7, "CREATE INDEX `K` ON `mytab` (`V`)", indexed, name="mytab")
    story.statement(8, "DROP INDEX `k` ON `mYtab`", new, name="mytab")
    story.apply()
    assert story.rows("MyTab") == [(1, "a", None), (2, "b", 3)]
    story.statement(4, "DROP TABLE `mytab`", 10, name="mytab")
    story.create(
        table(12, "MyTab", "x int", primary="x"), "CREATE TABLE `MyTab` (`x` INT PRIMARY KEY)"
    )
    story.apply()
    assert story.rows("MyTab") == []


def test_a_table_in_the_way_of_a_new_one_stops_the_pipeline(
    story: Story, mariadb: MariaDBServer
) -> None:
    story.apply()
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE d.t (other int)")
    simple(story, 10, "t")
    with pytest.raises(DdlError, match="has other columns"):
        story.apply()


def test_backslashes_in_the_text_are_characters(story: Story) -> None:
    enum = replace(column(2, "e enum('x','z')"), elems=("x\\y", "z\\"))
    old = table(10, "t", "id int", enum, column(3, "s varchar(20)", default="a\\b"), primary="id")
    story.create(
        old,
        "CREATE TABLE `t` (`id` INT PRIMARY KEY,`e` ENUM('x\\y','z\\'),`s` VARCHAR(20) DEFAULT"
        " _UTF8MB4'a\\b' COMMENT 'c\\') COMMENT = 'it''s \\'",
    )
    story.insert(old, {"id": 1, "e": "z\\", "s": "\\"}, {"id": 2, "e": "x\\y", "s": "'"})
    new = wider(old, column(4, "n varchar(10)", default="\\n", origin_default="\\n"))
    story.statement(5, "ALTER TABLE `t` ADD COLUMN `n` VARCHAR(10) DEFAULT _UTF8MB4'\\n'", new)
    story.apply()
    assert story.rows("t") == [(1, "z\\", "\\", "\\n"), (2, "x\\y", "'", "\\n")]


def test_what_a_statement_says_does_not_matter(story: Story, mariadb: MariaDBServer) -> None:
    """It may be the user's own words, whose meaning depends on a session that nobody knows any
    more.
    """
    made = table(
        10, "t", "id int", column(2, "s varchar(20)", default="a\nb", comment="x'y\""), primary="id"
    )
    story.statement(
        3,
        r"""create table t (id int primary key, s varchar(20) default "a\nb" comment 'x\'y"')""",
        made,
    )
    story.insert(made, {"id": 1, "s": None})
    story.apply()
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_comment FROM information_schema.columns WHERE table_schema = 'd' AND"
            " column_name = 's'"
        )
        assert cursor.fetchall() == (("x'y\"",),)


def test_every_table_is_transactional(story: Story, mariadb: MariaDBServer) -> None:
    story.create(
        table(10, "t", "id int", primary="id"),
        "CREATE TABLE `t` (`id` INT PRIMARY KEY) ENGINE = MyISAM",
    )
    story.create(
        table(11, "u", "id int", primary="id"),
        "CREATE TABLE `u` (`id` INT PRIMARY KEY) ENGINE = MEMORY PARTITION BY RANGE (`id`)"
        " (PARTITION `p0` VALUES LESS THAN (10) ENGINE = MyISAM)",
    )
    story.apply()
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT engine FROM information_schema.tables WHERE table_schema = 'd'"
        )
        assert cursor.fetchall() == (("InnoDB",),)


def expression_index(*names: str) -> Table:
    hidden = column(3, "_V$_ex_0 varchar(20)", hidden=True, generated="lower(`s`)")
    made = table(10, "t", "id int", "s varchar(20)", hidden, primary="id")
    return replace(
        made,
        indexes=tuple(Index(n, name, (("_V$_ex_0", 2, -1),)) for n, name in enumerate(names, 2)),
    )


def test_a_statement_that_drops_what_was_left_out_does_the_rest(story: Story) -> None:
    old = wider(expression_index("ex"), column(4, "gone int"))
    story.create(
        old,
        "CREATE TABLE `t` (`id` INT PRIMARY KEY,`s` VARCHAR(20),`gone` INT,INDEX"
        " `ex`((LOWER(`s`))))",
    )
    story.insert(old, {"id": 1, "s": "x", "gone": 5})
    story.statement(
        61,
        "ALTER TABLE `t` DROP INDEX `ex`, DROP COLUMN `gone`",
        replace(old, columns=old.columns[:2], indexes=()),
    )
    story.apply()
    assert story.rows("t") == [(1, "x")]


def test_an_index_that_was_left_out_may_be_renamed_and_hidden(story: Story) -> None:
    story.create(
        expression_index("ex"),
        "CREATE TABLE `t` (`id` INT PRIMARY KEY,`s` VARCHAR(20),INDEX `ex`((LOWER(`s`))))",
    )
    story.statement(18, "ALTER TABLE `t` RENAME INDEX `ex` TO `ey`", expression_index("ey"))
    story.statement(
        41,
        "ALTER TABLE `t` ALTER INDEX `ey` INVISIBLE",
        replace(
            expression_index("ey"),
            indexes=(replace(expression_index("ey").indexes[0], invisible=True),),
        ),
    )
    assert sum("left out before" in warning for warning in story.apply().warnings) == 2


def test_timestamps_are_converted_in_the_time_zone_of_the_upstream_session(story: Story) -> None:
    old = table(10, "t", "id int", "ts timestamp", "dt datetime", primary="id")
    story.create(old, "CREATE TABLE `t` (`id` INT PRIMARY KEY,`ts` TIMESTAMP,`dt` DATETIME)")
    story.insert(old, {"id": 1, "ts": "2020-01-01 00:00:00", "dt": "2020-06-01 12:00:00"})
    new = replace(
        old,
        columns=(
            old.columns[0],
            replace(column(5, "ts datetime"), offset=1),
            replace(column(6, "dt timestamp"), offset=2),
        ),
    )
    story.statement(
        61,
        "ALTER TABLE `t` MODIFY COLUMN `ts` DATETIME, MODIFY COLUMN `dt` TIMESTAMP",
        new,
        time_zone="Asia/Shanghai",
    )
    story.apply()
    assert story.rows("t") == [
        (1, datetime.datetime(2020, 1, 1, 8), datetime.datetime(2020, 6, 1, 4))
    ]


def test_a_time_zone_that_the_server_lacks_is_known_here(story: Story) -> None:
    old = table(10, "t", "id int", "ts timestamp", primary="id")
    story.create(old, "CREATE TABLE `t` (`id` INT PRIMARY KEY,`ts` TIMESTAMP)")
    story.insert(
        old, {"id": 1, "ts": "2020-01-01 00:00:00"}, {"id": 2, "ts": "2020-07-01 00:00:00"}
    )
    new = replace(old, columns=(old.columns[0], replace(column(5, "ts datetime"), offset=1)))
    story.statement(
        12, "ALTER TABLE `t` MODIFY COLUMN `ts` DATETIME", new, time_zone="America/New_York"
    )
    story.apply()
    assert story.rows("t") == [
        (1, datetime.datetime(2019, 12, 31, 19)),
        (2, datetime.datetime(2020, 6, 30, 20)),
    ]


def test_existing_rows_get_what_tidb_reads_for_a_column_they_predate(story: Story) -> None:
    old = simple(story, 10, "t")
    story.insert(old, {"id": 1})
    moving = replace(
        column(
            3,
            "b timestamp(3)",
            default="CURRENT_TIMESTAMP",
            origin_default="2024-05-06 07:08:09.123",
        ),
        flag=8192,
    )
    new = wider(
        old,
        column(
            2, "a timestamp", default="2019-12-31 16:00:00", origin_default="2019-12-31 16:00:00"
        ),
        moving,
        column(4, "c datetime", default="CURRENT_TIMESTAMP", origin_default="2024-05-06 15:08:09"),
        column(5, "j json not null", origin_default="null"),
        column(6, "y year not null", default="0", origin_default="0"),
        column(7, "z year not null", default="0000", origin_default="0000"),
    )
    story.statement(
        61,
        "ALTER TABLE `t` ADD COLUMN `a` TIMESTAMP DEFAULT _UTF8MB4'2020-01-01 00:00:00', ADD COLUMN"
        " `b` TIMESTAMP(3) DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3), ADD COLUMN"
        " `c` DATETIME DEFAULT CURRENT_TIMESTAMP, ADD COLUMN `j` JSON NOT NULL, ADD COLUMN `y` YEAR"
        " NOT NULL DEFAULT 0, ADD COLUMN `z` YEAR NOT NULL DEFAULT _UTF8MB4'0000'",
        new,
    )
    story.apply()
    at = datetime.datetime
    assert story.rows("t") == [
        (
            1,
            at(2019, 12, 31, 16),
            at(2024, 5, 6, 7, 8, 9, 123000),
            at(2024, 5, 6, 15, 8, 9),
            "null",
            2000,
            0,
        )
    ]


def test_a_moment_by_the_clock_of_a_server_nobody_knows_stops_by_name(story: Story) -> None:
    old = table(10, "t", "id int", primary="id")
    empty = table(11, "e", "id int", primary="id")
    moment = column(
        2,
        "ts timestamp",
        default="2018-01-01 10:00:00",
        origin_default="2018-01-01 10:00:00",
        version=0,
    )
    for one in (empty, old):
        story.create(one, "CREATE TABLE x")
    story.insert(old, {"id": 1})
    for one in (empty, old):
        text = f"ALTER TABLE `{one.name}` ADD COLUMN `ts` TIMESTAMP DEFAULT '2018-01-01 10:00:00'"
        story.statement(5, text, replace(one, columns=(*one.columns, moment)))
    with pytest.raises(
        DdlError, match=r"d\.t\.ts: .*'2018-01-01 10:00:00' by the clock .*sluice ddl skip"
    ):
        story.apply()


def test_rows_wider_than_the_server_allows_are_kept_whole(story: Story) -> None:
    specs = [column(n + 2, f"c{n} varchar(1000)", default="x") for n in range(20)]
    old = table(10, "t", "id int", *specs, primary="id")
    story.create(
        old,
        "CREATE TABLE `t` (`id` INT PRIMARY KEY,"
        + ",".join(f"`c{n}` VARCHAR(1000) DEFAULT _UTF8MB4'x'" for n in range(20))
        + ")",
    )
    story.insert(old, {"id": 1} | {f"c{n}": "é" * 1000 for n in range(20)})
    story.apply()
    assert story.rows("t", "id, c0 = REPEAT('é', 1000), c19 = REPEAT('é', 1000)") == [(1, 1, 1)]


def test_generated_columns_may_be_not_null(story: Story) -> None:
    old = table(
        10, "t", "id int", "a int", column(3, "b int not null", generated="`a`*2"), primary="id"
    )
    story.create(
        old,
        "CREATE TABLE `t` (`id` INT PRIMARY KEY,`a` INT,`b` INT GENERATED ALWAYS AS(`a`*2) VIRTUAL"
        " NOT NULL)",
    )
    story.insert(old, {"id": 1, "a": 2})
    new = wider(old, column(4, "c int not null", generated="`a`+1"))
    story.statement(
        5, "ALTER TABLE `t` ADD COLUMN `c` INT GENERATED ALWAYS AS(`a`+1) VIRTUAL NOT NULL", new
    )
    story.apply()
    assert story.rows("t") == [(1, 2, 4, 3)]


def test_names_handed_on_in_a_ring(story: Story) -> None:
    a, b = simple(story, 10, "a"), simple(story, 11, "b")
    story.insert(a, {"id": 1})
    story.insert(b, {"id": 2})
    story.statement(
        47,
        "RENAME TABLE `a` TO `tmp`, `b` TO `a`, `tmp` TO `b`",
        replace(a, name="b"),
        replace(b, name="a"),
    )
    story.apply()
    assert (story.rows("a"), story.rows("b")) == ([(2,)], [(1,)])


def test_interval_partitions_come_go_and_merge(story: Story, mariadb: MariaDBServer) -> None:
    parts = [
        (21, "P_LT_100", "100"),
        (22, "P_LT_200", "200"),
        (23, "P_LT_300", "300"),
        (24, "P_LT_400", "400"),
    ]
    old = table(10, "t", "id int", primary="id", partition=partitioned(1, "`id`", *parts[:3]))
    story.create(
        old,
        "CREATE TABLE `t` (`id` INT PRIMARY KEY) PARTITION BY RANGE (`id`) INTERVAL (100) FIRST"
        " PARTITION LESS THAN (100) LAST PARTITION LESS THAN (300)",
    )
    story.insert(old, {"id": 1}, {"id": 150}, {"id": 250})
    story.statement(
        19,
        "ALTER TABLE `t` LAST PARTITION LESS THAN (400)",
        replace(old, partition=partitioned(1, "`id`", *parts)),
    )
    story.statement(
        20,
        "ALTER TABLE `t` FIRST PARTITION LESS THAN (200)",
        replace(old, partition=partitioned(1, "`id`", *parts[1:])),
    )
    last = replace(old, partition=partitioned(1, "`id`", (25, "P_LT_300", "300"), parts[3]))
    story.statement(64, "ALTER TABLE `t` MERGE FIRST PARTITION LESS THAN (300)", last)
    story.insert(last, {"id": 399})
    story.apply()
    assert story.rows("t") == [(150,), (250,), (399,)]
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT partition_name FROM information_schema.partitions WHERE table_schema = 'd'"
            " ORDER BY 1"
        )
        assert cursor.fetchall() == (("P_LT_300",), ("P_LT_400",))


def test_foreign_keys_are_never_in_the_way_of_rows_or_statements(story: Story) -> None:
    parent = simple(story, 10, "p")
    child = replace(
        table(11, "c", "id int", "pid int", primary="id"),
        indexes=(Index(2, "fk_1", (("pid", 1, -1),)),),
    )
    story.create(
        child,
        "CREATE TABLE `c` (`id` INT PRIMARY KEY,`pid` INT,CONSTRAINT FOREIGN KEY (`pid`) REFERENCES"
        " `p`(`id`) ON DELETE CASCADE)",
    )
    story.insert(parent, {"id": 1})
    story.insert(child, {"id": 1, "pid": 1}, {"id": 2, "pid": 99})
    story.statement(10, "ALTER TABLE `c` DROP FOREIGN KEY `fk_1`", child)
    story.statement(
        61,
        "ALTER TABLE `c` DROP INDEX `fk_1`, DROP COLUMN `pid`",
        replace(child, columns=child.columns[:1], indexes=()),
    )
    story.statement(11, "TRUNCATE TABLE `p`", 10, replace(parent, id=12))
    story.statement(4, "DROP TABLE `p`", 12)
    story.apply()
    assert story.rows("c") == [(1,), (2,)]


def test_checks_that_tidb_only_parses_reject_nothing(story: Story) -> None:
    made = story.create(
        table(10, "t", "id int", primary="id"),
        "CREATE TABLE `t` (`id` INT PRIMARY KEY,CHECK(`id`>10))",
    )
    story.insert(made, {"id": 1})
    story.apply()
    assert story.rows("t") == [(1,)]


def test_a_dropped_database_comes_back(story: Story) -> None:
    made = simple(story, 10, "T")
    story.insert(made, {"id": 1})
    story.statement(2, "DROP DATABASE `d`", 10, schemas={1: None})
    story.apply()
    story.statement(
        63, "FLASHBACK DATABASE `d`", made, schemas={1: Schema(1, "d", "utf8mb4", "utf8mb4_bin")}
    )
    story.insert(made, {"id": 2})
    story.apply()
    assert story.rows("T") == [(1,), (2,)]


def test_a_truncated_table_comes_back_under_another_name(story: Story) -> None:
    made = simple(story, 10, "t")
    story.insert(made, {"id": 1})
    emptied = replace(made, id=11)
    story.statement(11, "TRUNCATE TABLE `t`", 10, emptied)
    story.insert(emptied, {"id": 5})
    story.statement(25, "FLASHBACK TABLE `t` TO `t2`", replace(made, name="t2"))
    story.apply()
    assert (story.rows("t"), story.rows("t2")) == ([(5,)], [(1,)])


def test_hints_about_how_to_alter_are_left_out(story: Story) -> None:
    old = story.create(
        table(10, "t", "id int", "v int", primary="id"),
        "CREATE TABLE `t` (`id` INT PRIMARY KEY,`v` INT)",
    )
    new = replace(old, columns=(old.columns[0], replace(old.columns[1], tp=8)))
    story.statement(
        12, "ALTER TABLE `t` MODIFY COLUMN `v` BIGINT, ALGORITHM = INSTANT, LOCK = NONE", new
    )
    story.insert(new, {"id": 1, "v": 2**40})
    assert story.apply().warnings == []
    assert story.rows("t") == [(1, 2**40)]


CONVERSIONS = [
    ("datetime(6)", "datetime", "2020-01-02 03:04:05.600000", "2020-01-02 03:04:06"),
    ("time(3)", "time", "10:00:00.600", "10:00:01"),
    ("datetime(3)", "time", "2020-01-02 13:04:05.700", "13:04:06"),
    ("datetime", "date", "2020-01-02 13:04:05", "2020-01-02"),
    ("decimal(10,3)", "int", "-2.500", "-3"),
    ("double", "int", 2.5, "2"),
    ("float", "double", 0.10000000149011612, "0.10000000149011612"),
    ("float", "decimal(20,10)", 0.10000000149011612, "0.1000000015"),
    ("varchar(20)", "decimal(10,2)", "1.239", "1.24"),
    ("enum('a','b')", "enum('b','a','c')", "b", "b"),
    ("time", "int", "-10:11:12", "-101112"),
    ("json", "varchar(50)", '{"a": 1}', '{"a": 1}'),
    ("double", "varchar(40)", 1e21, "1000000000000000000000"),
    ("double", "text", -1e-7, "-0.0000001"),
    ("double", "varchar(9)", 2.5, "2.5"),
    ("float", "varchar(8)", 16777216.0, "16777216"),
    ("float", "varchar(3)", 0.10000000149011612, "0.1"),
    ("float(10,3)", "char(5)", 1.5, "1.5"),
    ("char(5)", "binary(5)", "a", "a\0\0\0\0"),
    ("varchar(9)", "set('x','y')", "y,x", "x,y"),
    ("year(4)", "int", 0, "0"),
]


@pytest.mark.slow
def test_changes_of_type_leave_what_they_leave_upstream(
    story: Story, mariadb: MariaDBServer
) -> None:
    for number, (old, new, value, _) in enumerate(CONVERSIONS, 10):
        name = f"t{number}"
        before = story.create(
            table(number, name, "id int", f"c {old}", primary="id"),
            f"CREATE TABLE `{name}` (`id` INT PRIMARY KEY,`c` {old})",
        )
        story.insert(before, {"id": 1, "c": value})
        after = replace(
            before, columns=(before.columns[0], replace(column(5, f"c {new}"), offset=1))
        )
        story.statement(12, f"ALTER TABLE `{name}` MODIFY COLUMN `c` {new}", after)
    story.apply()
    with mariadb.connect(conv={}, use_unicode=False) as connection, connection.cursor() as cursor:
        for number, (old, new, _, want) in enumerate(CONVERSIONS, 10):
            cursor.execute(f"SELECT c FROM d.t{number}")
            assert cursor.fetchall() == ((want.encode(),),), f"{old} to {new}"


def test_defaults_that_the_server_lacks_do_not_matter_to_rows(story: Story) -> None:
    own = column(2, "u varbinary(16)", default="UUID_TO_BIN(UUID())", default_is_expr=True)
    old = story.create(
        table(10, "t", "id int", own, primary="id"),
        "CREATE TABLE `t` (`id` INT PRIMARY KEY,`u` VARBINARY(16) DEFAULT UUID_TO_BIN(UUID()))",
    )
    story.insert(old, {"id": 1, "u": b"\xff"})
    new = wider(old, column(3, "n int", default="nextval(`d`.`nowhere`)", default_is_expr=True))
    story.statement(5, "ALTER TABLE `t` ADD COLUMN `n` INT DEFAULT NEXTVAL(`nowhere`)", new)
    story.insert(new, {"id": 2, "u": None, "n": 5})
    story.apply()
    assert story.rows("t") == [(1, b"\xff", None), (2, None, 5)]


def test_latin1_columns_in_keys_that_utf8_makes_too_long(story: Story) -> None:
    made = table(
        10,
        "t",
        "id int",
        "v varchar(3000) character set latin1",
        "w varchar(2000) character set latin1",
        primary="id",
        unique=("w",),
    )
    made = replace(made, indexes=(*made.indexes, Index(9, "k", (("v", 1, -1),))))
    story.create(
        made,
        "CREATE TABLE `t` (`id` INT PRIMARY KEY,`v` VARCHAR(3000),`w` VARCHAR(2000),INDEX"
        " `k`(`v`),UNIQUE `u2`(`w`)) DEFAULT CHARACTER SET = LATIN1",
    )
    story.insert(made, {"id": 1, "v": "日" * 1000, "w": "é" * 2000})
    story.apply()
    assert index_definition(made, made.indexes[-1], Dialect.from_version("8.0.36")) == (
        ["KEY `k` (`v`(768))"],
        ["index k of d.t is longer than the downstream allows: shortened"],
    )
    assert (
        "left out" in index_definition(made, made.indexes[0], Dialect.from_version("8.0.36"))[1][0]
    )
    assert story.rows("t", "v = REPEAT('日', 1000), w = REPEAT('é', 2000)") == [(1, 1)]


def test_bounds_of_timestamp_partitions_are_those_of_the_upstream_session(story: Story) -> None:
    """Upstream session in +08:00: 2020-01-01 00:00:00 there is 2019-12-31 16:00:00 in UTC,
    1577808000.
    """
    bounds = [(21, "p0", "1577808000"), (22, "p1", "1577894400")]
    old = table(
        10,
        "t",
        "id int",
        "ts timestamp",
        primary="id,ts",
        partition=partitioned(1, "unix_timestamp(`ts`)", bounds[0]),
    )
    story.create(
        old,
        "CREATE TABLE `t` (`id` INT,`ts` TIMESTAMP,PRIMARY KEY(`id`, `ts`)) PARTITION BY RANGE"
        " (UNIX_TIMESTAMP(`ts`)) (PARTITION `p0` VALUES LESS THAN"
        " (UNIX_TIMESTAMP(_UTF8MB4'2020-01-01 00:00:00')))",
    )
    new = replace(old, partition=partitioned(1, "unix_timestamp(`ts`)", *bounds))
    story.statement(
        19,
        "ALTER TABLE `t` ADD PARTITION (PARTITION `p1` VALUES LESS THAN"
        " (UNIX_TIMESTAMP(_UTF8MB4'2020-01-02 00:00:00')))",
        new,
    )
    story.insert(
        new, {"id": 1, "ts": "2019-12-31 15:59:59"}, {"id": 2, "ts": "2019-12-31 16:00:00"}
    )
    story.statement(
        20,
        "ALTER TABLE `t` DROP PARTITION `p0`",
        replace(old, partition=partitioned(1, "unix_timestamp(`ts`)", bounds[1])),
    )
    story.apply()
    assert story.rows("t", "id") == [(2,)]
