"""The numbers of TiDB's column types (`tp` of ColumnInfo) and the bits of their `flag`.

They are those of MySQL's protocol. Source: pkg/parser/mysql/type.go of TiDB. Text and its binary
twin (TEXT and BLOB, CHAR and BINARY) have one number and differ in their character set.
"""

from __future__ import annotations

from typing import Final

TINYINT: Final = 1
SMALLINT: Final = 2
INT: Final = 3
FLOAT: Final = 4
DOUBLE: Final = 5
NULL: Final = 6
TIMESTAMP: Final = 7
BIGINT: Final = 8
MEDIUMINT: Final = 9
DATE: Final = 10
TIME: Final = 11
DATETIME: Final = 12
YEAR: Final = 13
NEWDATE: Final = 14
VARCHAR: Final = 15
BIT: Final = 16
VECTOR: Final = 0xE1
JSON: Final = 0xF5
DECIMAL: Final = 0xF6
ENUM: Final = 0xF7
SET: Final = 0xF8
TINYTEXT: Final = 0xF9
MEDIUMTEXT: Final = 0xFA
LONGTEXT: Final = 0xFB
TEXT: Final = 0xFC
VAR_STRING: Final = 0xFD
"""VARCHAR in tables of very old versions."""
CHAR: Final = 0xFE
GEOMETRY: Final = 0xFF

NAMES: Final = {
    TINYINT: "tinyint",
    SMALLINT: "smallint",
    INT: "int",
    FLOAT: "float",
    DOUBLE: "double",
    NULL: "null",
    TIMESTAMP: "timestamp",
    BIGINT: "bigint",
    MEDIUMINT: "mediumint",
    DATE: "date",
    TIME: "time",
    DATETIME: "datetime",
    YEAR: "year",
    NEWDATE: "date",
    VARCHAR: "varchar",
    BIT: "bit",
    VECTOR: "vector",
    JSON: "json",
    DECIMAL: "decimal",
    ENUM: "enum",
    SET: "set",
    TINYTEXT: "tinytext",
    MEDIUMTEXT: "mediumtext",
    LONGTEXT: "longtext",
    TEXT: "text",
    VAR_STRING: "var_string",
    CHAR: "char",
    GEOMETRY: "geometry",
}
"""TiDB's name for each type."""
BYTES_NAMES: Final = {
    "tinytext": "tinyblob", "mediumtext": "mediumblob", "longtext": "longblob", "text": "blob",
    "varchar": "varbinary", "char": "binary",
}  # fmt: skip
"""The names of the binary twins."""

KINDS: Final = {
    TINYINT: "int",
    SMALLINT: "int",
    INT: "int",
    FLOAT: "float",
    DOUBLE: "double",
    NULL: "null",
    TIMESTAMP: "timestamp",
    BIGINT: "int",
    MEDIUMINT: "int",
    DATE: "date",
    TIME: "time",
    DATETIME: "datetime",
    YEAR: "year",
    NEWDATE: "date",
    VARCHAR: "text",
    BIT: "bit",
    VECTOR: "vector",
    JSON: "json",
    DECIMAL: "decimal",
    ENUM: "enum",
    SET: "set",
    TINYTEXT: "text",
    MEDIUMTEXT: "text",
    LONGTEXT: "text",
    TEXT: "text",
    VAR_STRING: "text",
    CHAR: "text",
    GEOMETRY: "binary",
}
"""The kind of each type's values; text in the character set `binary` is "binary"."""

VARYING: Final = (VARCHAR, VAR_STRING)
LONG: Final = (TINYTEXT, TEXT, MEDIUMTEXT, LONGTEXT)
"""TEXT and BLOB of every size, the shortest first."""

FLAG_NOT_NULL: Final = 1
FLAG_PRIMARY_KEY: Final = 2
FLAG_UNIQUE_KEY: Final = 4
FLAG_MULTIPLE_KEY: Final = 8
"""The column is in an index that isn't unique, or isn't its first column."""
FLAG_UNSIGNED: Final = 32
FLAG_ZEROFILL: Final = 64
FLAG_AUTO_INCREMENT: Final = 512
FLAG_NO_DEFAULT: Final = 4096
FLAG_ON_UPDATE_NOW: Final = 8192
