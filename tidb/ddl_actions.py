"""TiDB's DDL job types (its ActionType) by number, under TiDB's names.

Sets of them group the jobs by what they do to rows.
"""

from __future__ import annotations

from enum import IntEnum


class Action(IntEnum):
    """A DDL job type.

    `title` is TiDB's name, as ADMIN SHOW DDL JOBS prints it. A newer TiDB has types that aren't
    here, so a job holds its type as a number.
    """

    title: str

    def __new__(cls, number: int, title: str = "") -> Action:
        action = int.__new__(cls, number)
        action._value_ = number
        action.title = title
        return action

    CREATE_SCHEMA = 1, "create schema"
    DROP_SCHEMA = 2, "drop schema"
    CREATE_TABLE = 3, "create table"
    DROP_TABLE = 4, "drop table"
    ADD_COLUMN = 5, "add column"
    DROP_COLUMN = 6, "drop column"
    ADD_INDEX = 7, "add index"
    DROP_INDEX = 8, "drop index"
    ADD_FOREIGN_KEY = 9, "add foreign key"
    DROP_FOREIGN_KEY = 10, "drop foreign key"
    TRUNCATE_TABLE = 11, "truncate table"
    MODIFY_COLUMN = 12, "modify column"
    REBASE_AUTO_ID = 13, "rebase auto_increment ID"
    RENAME_TABLE = 14, "rename table"
    SET_DEFAULT_VALUE = 15, "set default value"
    SHARD_ROW_ID = 16, "shard row ID"
    MODIFY_TABLE_COMMENT = 17, "modify table comment"
    RENAME_INDEX = 18, "rename index"
    ADD_PARTITION = 19, "add partition"
    DROP_PARTITION = 20, "drop partition"
    CREATE_VIEW = 21, "create view"
    MODIFY_TABLE_CHARSET = 22, "modify table charset and collate"
    TRUNCATE_PARTITION = 23, "truncate partition"
    DROP_VIEW = 24, "drop view"
    RECOVER_TABLE = 25, "recover table"
    MODIFY_SCHEMA_CHARSET = 26, "modify schema charset and collate"
    LOCK_TABLE = 27, "lock table"
    UNLOCK_TABLE = 28, "unlock table"
    REPAIR_TABLE = 29, "repair table"
    SET_TIFLASH_REPLICA = 30, "set tiflash replica"
    UPDATE_TIFLASH_REPLICA_STATUS = 31, "update tiflash replica status"
    ADD_PRIMARY_KEY = 32, "add primary key"
    DROP_PRIMARY_KEY = 33, "drop primary key"
    CREATE_SEQUENCE = 34, "create sequence"
    ALTER_SEQUENCE = 35, "alter sequence"
    DROP_SEQUENCE = 36, "drop sequence"
    ADD_COLUMNS = 37, "add multi-columns"
    DROP_COLUMNS = 38, "drop multi-columns"
    MODIFY_AUTO_ID_CACHE = 39, "modify auto id cache"
    REBASE_AUTO_RANDOM_BASE = 40, "rebase auto_random ID"
    ALTER_INDEX_VISIBILITY = 41, "alter index visibility"
    EXCHANGE_PARTITION = 42, "exchange partition"
    ADD_CHECK_CONSTRAINT = 43, "add check constraint"
    DROP_CHECK_CONSTRAINT = 44, "drop check constraint"
    ALTER_CHECK_CONSTRAINT = 45, "alter check constraint"
    RENAME_TABLES = 47, "rename tables"
    DROP_INDEXES = 48, "drop multi-indexes"
    ALTER_TABLE_ATTRIBUTES = 49, "alter table attributes"
    ALTER_PARTITION_ATTRIBUTES = 50, "alter table partition attributes"
    CREATE_PLACEMENT_POLICY = 51, "create placement policy"
    ALTER_PLACEMENT_POLICY = 52, "alter placement policy"
    DROP_PLACEMENT_POLICY = 53, "drop placement policy"
    ALTER_PARTITION_PLACEMENT = 54, "alter table partition placement"
    MODIFY_SCHEMA_PLACEMENT = 55, "modify schema default placement"
    ALTER_TABLE_PLACEMENT = 56, "alter table placement"
    ALTER_TABLE_CACHE = 57, "alter table cache"
    ALTER_TABLE_STATS_OPTIONS = 58, "alter table statistics options"
    ALTER_TABLE_NOCACHE = 59, "alter table nocache"
    CREATE_TABLES = 60, "create tables"
    MULTI_SCHEMA_CHANGE = 61, "alter table multi-schema change"
    FLASHBACK_CLUSTER = 62, "flashback cluster"
    RECOVER_SCHEMA = 63, "flashback schema"
    REORGANIZE_PARTITION = 64, "alter table reorganize partition"
    ALTER_TTL = 65, "alter table ttl"
    ALTER_TTL_ENABLE = 66, "alter table ttl_enable"
    """Of TiDB 6.5's development; no release has such jobs, and TiDB has no name for it any more."""
    REMOVE_TTL = 67, "alter table no_ttl"
    CREATE_RESOURCE_GROUP = 68, "create resource group"
    ALTER_RESOURCE_GROUP = 69, "alter resource group"
    DROP_RESOURCE_GROUP = 70, "drop resource group"
    PARTITION_TABLE = 71, "alter table partition by"
    REMOVE_PARTITIONING = 72, "alter table remove partitioning"


IGNORED_ACTIONS = frozenset(
    {
        Action.LOCK_TABLE,
        Action.UNLOCK_TABLE,
        Action.UPDATE_TIFLASH_REPLICA_STATUS,
        Action.ALTER_TABLE_ATTRIBUTES,
        Action.ALTER_PARTITION_ATTRIBUTES,
        Action.CREATE_PLACEMENT_POLICY,
        Action.ALTER_PLACEMENT_POLICY,
        Action.DROP_PLACEMENT_POLICY,
        Action.ALTER_PARTITION_PLACEMENT,
        Action.MODIFY_SCHEMA_PLACEMENT,
        Action.ALTER_TABLE_PLACEMENT,
        Action.ALTER_TABLE_CACHE,
        Action.ALTER_TABLE_NOCACHE,
        Action.CREATE_RESOURCE_GROUP,
        Action.ALTER_RESOURCE_GROUP,
        Action.DROP_RESOURCE_GROUP,
    }
)
"""Jobs that change nothing a downstream has: table locks, TiFlash progress, attributes, placement,
table cache, resource groups.
"""

REMOVES_PARTITIONS = frozenset({Action.DROP_PARTITION, Action.TRUNCATE_PARTITION})
"""Jobs that take partitions away with their rows."""

MOVES_ROWS = REMOVES_PARTITIONS | {
    Action.EXCHANGE_PARTITION,
    Action.PARTITION_TABLE,
    Action.REMOVE_PARTITIONING,
}
"""Jobs after which rows that were written by the definition before lie elsewhere, or nowhere. They
go through several schema versions, and rows follow one or another.
"""

WRITES_TWICE = frozenset(
    {Action.REORGANIZE_PARTITION, Action.PARTITION_TABLE, Action.REMOVE_PARTITIONING}
)
"""Jobs during which sessions write each row into its old and its new partition, and each change
into the binlog twice. ADD PARTITION and COALESCE PARTITION of a HASH or KEY table are jobs of
REORGANIZE_PARTITION.
"""

REMOVES_ROWS = REMOVES_PARTITIONS | {Action.DROP_SCHEMA, Action.DROP_TABLE, Action.TRUNCATE_TABLE}
"""Jobs after which rows are gone."""

LOOSENS_KEYS = frozenset(
    {
        Action.DROP_COLUMN,
        Action.DROP_INDEX,
        Action.DROP_PRIMARY_KEY,
        Action.DROP_COLUMNS,
        Action.DROP_INDEXES,
        Action.MULTI_SCHEMA_CHANGE,
    }
)
"""Jobs that may give up a unique key."""

DROPS_COLUMNS = frozenset({Action.DROP_COLUMN, Action.DROP_COLUMNS})
"""Jobs of which TiDB writes a binlog twice: when rows stop carrying the column, and when the table
lacks it.
"""

RENAMES = frozenset({Action.RENAME_TABLE, Action.RENAME_TABLES})
"""Jobs of RENAME TABLE, with one pair of names or several."""


def action_name(number: int) -> str:
    """Return TiDB's name of a job type; "type <number>" for one that isn't known here."""
    try:
        return Action(number).title
    except ValueError:
        return f"type {number}"
