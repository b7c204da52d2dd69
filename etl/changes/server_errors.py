"""Name the error numbers of SQL servers and the client library that decide what is done next.

Sources: MySQL's and MariaDB's error references (the client's from 2000 on), TiDB's from 8000 on.
"""

from __future__ import annotations

from typing import Final

RECORD_CHANGED: Final = 1020
RENAME_FAILED: Final = 1025
ACCESS_DENIED: Final = 1045
NO_DATABASE: Final = 1046
UNKNOWN_COMMAND: Final = 1047
UNKNOWN_DATABASE: Final = 1049
TABLE_EXISTS: Final = 1050
UNKNOWN_TABLE: Final = 1051
"""Raised by DROP TABLE; other statements raise NO_SUCH_TABLE."""
NOT_NULL: Final = 1048
UNKNOWN_COLUMN: Final = 1054
DUPLICATE_ENTRY: Final = 1062
SYNTAX_ERROR: Final = 1064
UNKNOWN_ERROR: Final = 1105
"""TiDB's number of most errors that have no number of their own."""
COLUMN_COUNT: Final = 1136
MIXES_AGGREGATES: Final = 1140
NOT_GRANTED: Final = 1141
NO_SUCH_TABLE: Final = 1146
PACKET_TOO_LARGE: Final = 1153
UNKNOWN_VARIABLE: Final = 1193
LOCK_WAIT_TIMEOUT: Final = 1205
LOCK_TABLE_FULL: Final = 1206
"""The server's lock table is full.

InnoDB has rolled the whole transaction back then, as at a deadlock.
"""
DEADLOCK: Final = 1213
LACKS_PRIVILEGE: Final = 1227
UNFIT: Final = 1231
"""A variable, or a table, is not what it has to be; trying again does not help."""
OPTION_PREVENTS: Final = 1290
INCORRECT_TIME: Final = 1292
UNKNOWN_ZONE: Final = 1298
UNKNOWN_FUNCTION: Final = 1305
NO_DEFAULT: Final = 1364
INCORRECT_VALUE: Final = 1366
TABLE_DEF_CHANGED: Final = 1412
TRIGGER_IN_WRONG_SCHEMA: Final = 1435
SERVER_GONE: Final = 2006
VERSION_MISMATCH: Final = 2007
SSL_ERROR: Final = 2026
TRANSACTION_TOO_LARGE: Final = 8004
ENTRY_TOO_LARGE: Final = 8025
SNAPSHOT_TOO_OLD: Final = 8055
MEMORY_EXCEEDED: Final = 8175
GC_TOO_EARLY: Final = 9006
"""The garbage collection has removed what a transaction would read."""

WRITE_CONFLICT: Final = 9007

OLDER_THAN_GC: Final = frozenset({SNAPSHOT_TOO_OLD, GC_TOO_EARLY})

IN_FOREIGN_KEY: Final = frozenset({1553, 1828, 1829, 1832, 1833, 1834})
"""A column or an index can't be changed or dropped, for a foreign key needs it."""
ROW_TOO_WIDE: Final = 1118
TOO_LONG: Final = frozenset({1071, 1074, ROW_TOO_WIDE})
"""A key, a column, a row."""
UNFIT_VALUE: Final = frozenset(
    {1264, 1265, INCORRECT_TIME, INCORRECT_VALUE, 1406, 1411, 1441, 1690}
)
"""Values that a column's type can't hold."""
# fmt: off
TRANSIENT: Final = frozenset(
    {
        0,  # the client knows no number: the connection broke
        # too many connections, starting, shutting down
        1040, 1042, 1043, UNKNOWN_COMMAND, 1053, 1077, 1079, 1080,
        # connection or query ended by net or server
        1152, 1158, 1159, 1160, 1161, 1184, 1317, 1927, 3032, 4031,
        # others were in the way
        RECORD_CHANGED, LOCK_WAIT_TIMEOUT, LOCK_TABLE_FULL, DEADLOCK, TABLE_DEF_CHANGED,
        OPTION_PREVENTS, 1836,  # read-only for now
        2002, 2003, SERVER_GONE, 2013, 2014, 2027, 2055,
        # write conflict, schema changed meanwhile, locks expired
        8002, 8005, 8022, 8027, 8028, 8229,
        9001, 9002, 9003, 9005, 9007,  # PD or TiKV slow, busy or away, write conflict
    }
)
# fmt: on
"""Trying again later may help."""
