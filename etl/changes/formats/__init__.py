"""Format what servers and files take: SQL, DDL, LOAD DATA, binlog files.

The modules are the public API.
"""

__all__ = [
    "binlog_file",
    "ddl_columns",
    "ddl_partitions",
    "ddl_text",
    "deletes",
    "load_data",
    "load_statements",
    "sql_columns",
    "sql_scripts",
    "sql_text",
    "table_fallbacks",
]
