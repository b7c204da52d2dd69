"""Bytes and text that others read: SQL, DDL, LOAD DATA, files of binlogs. Its modules are its doors."""

__all__ = [
    "binlog_file",
    "ddl_columns",
    "ddl_forms",
    "ddl_partitions",
    "ddl_text",
    "deletes",
    "load_data",
    "operator_sql",
    "sql_text",
]
