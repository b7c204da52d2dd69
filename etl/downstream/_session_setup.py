"""What the writing relies on in a session: each variable is set, and looked at afterwards. What can't be had is named.

docs/reference/servers.md, is this list for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

STRICT_SQL_MODE = (
    "STRICT_TRANS_TABLES,STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES"
)
LENIENT_SQL_MODE = "NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES"
LEAST_PACKET_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Variable:
    """A session variable and the value it gets, as SHOW VARIABLES spells it. `why`: what would go wrong, if the value
    is a must.
    """

    name: str
    value: str
    why: str = ""


_WRONG_ROWS = "statements would find or change other rows than they name"
VARIABLES = (
    Variable("sql_mode", STRICT_SQL_MODE, "values that don't fit would be changed instead of refused"),
    Variable("time_zone", "+00:00", "TIMESTAMPs would be off by the zone"),
    Variable(
        "explicit_defaults_for_timestamp",
        "ON",
        "NULL in a TIMESTAMP would become the time of writing, also in rows that are there",
    ),
    Variable("foreign_key_checks", "OFF", "the upstream's cascades come as rows; here they would happen twice"),
    Variable("unique_checks", "ON", "duplicates could get into secondary keys"),
    Variable("character_set_client", "utf8mb4", "text would arrive as other characters"),
    Variable("character_set_connection", "utf8mb4", "text would be compared as other characters"),
    Variable("character_set_results", "utf8mb4", "text would be read as other characters"),
    Variable("autocommit", "OFF", "parts of a transaction would be committed by themselves"),
    Variable("completion_type", "NO_CHAIN", "COMMIT would begin or end more than it says"),
    Variable("sql_safe_updates", "OFF", "rows without a key could not be removed"),
    Variable("sql_auto_is_null", "OFF", _WRONG_ROWS),
    Variable("sql_big_selects", "ON"),
    Variable("sql_notes", "ON", "values that were changed would not be noticed"),
    Variable("max_error_count", "64"),
    Variable("default_storage_engine", "InnoDB", "tables would have no transactions"),
    Variable("innodb_strict_mode", "ON"),
    Variable("default_week_format", "0", "generated columns would hold other values than upstream"),
    Variable("div_precision_increment", "4", "generated columns would hold other values than upstream"),
    Variable("lc_time_names", "en_US", "generated columns would hold other values than upstream"),
    # MariaDB
    Variable("in_predicate_conversion_threshold", "0"),  # long IN lists stay ranges on the key
    # TiDB has checked what it checks; MariaDB's JSON check refuses documents nested deeper than 32.
    Variable("check_constraint_checks", "OFF", "rows that the upstream has would be refused"),
    Variable("system_versioning_alter_history", "KEEP"),
    Variable("max_statement_time", "0.000000"),
    Variable("sql_if_exists", "OFF", "a DDL on what isn't there would look as if it had been done"),
    Variable("character_set_collations", ""),
    Variable("tx_read_only", "OFF", "nothing could be written"),
    # MySQL
    Variable("transaction_read_only", "OFF", "nothing could be written"),
    Variable("information_schema_stats_expiry", "0", "what a DDL has left would be seen a day later"),
    Variable("range_optimizer_max_mem_size", "0"),  # long OR lists stay ranges on the key
    Variable("sql_require_primary_key", "OFF"),
    Variable("sql_generate_invisible_primary_key", "OFF"),
    # TiDB
    Variable(
        "tidb_txn_mode",
        "pessimistic",
        "SELECT ... FOR UPDATE would not lock, and two processes could write side by side",
    ),
    Variable("tidb_constraint_check_in_place", "ON"),
    Variable("tidb_constraint_check_in_place_pessimistic", "ON", "duplicates would be noticed after the fact"),
    Variable(
        "tidb_disable_txn_auto_retry",
        "ON",
        "a transaction that lost a conflict would be tried again with what it had read before",
    ),
    Variable("tidb_batch_insert", "OFF", "a transaction would be committed in parts"),
    Variable("tidb_batch_delete", "OFF", "a transaction would be committed in parts"),
    Variable("tidb_batch_commit", "OFF", "a transaction would be committed in parts"),
    Variable("tidb_dml_batch_size", "0"),
    Variable("tidb_dml_type", "standard", "a transaction would be committed in parts"),
    Variable("tidb_snapshot", "", "the past would be read"),
    Variable("tidb_read_staleness", "0", "the past would be read"),
    Variable("tidb_low_resolution_tso", "OFF", "the past would be read"),
    Variable("allow_auto_random_explicit_insert", "ON", "rows of tables with AUTO_RANDOM would be refused"),
    Variable("tidb_skip_utf8_check", "ON"),  # the upstream has checked what it checks
    Variable("tidb_skip_ascii_check", "ON"),
    Variable("tidb_enable_exchange_partition", "ON"),
    Variable("tidb_enable_list_partition", "ON"),
)
_IDLE_S, _ROW_LOCK_S = 900, 50


def time_outs(read_timeout_s: int) -> tuple[Variable, ...]:
    """What ends a session whose client stands still or is cut off: its locks must not stay for the server's eight
    hours. The server gives up waiting for a lock no later than the client does.
    """
    idle_s = str(max(_IDLE_S, 3 * read_timeout_s))
    return (
        Variable("wait_timeout", idle_s),
        Variable("idle_transaction_timeout", idle_s),  # MariaDB
        Variable("lock_wait_timeout", str(read_timeout_s)),  # metadata locks
        Variable("innodb_lock_wait_timeout", str(min(_ROW_LOCK_S, read_timeout_s))),
        Variable("max_execution_time", "0"),  # MySQL
    )


ALL_ROWS = "SET SESSION sql_select_limit = 18446744073709551615"
"""Comes first: it limits what SHOW VARIABLES says, too."""
ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
_ISOLATION_VARIABLES = ("transaction_isolation", "tx_isolation")
_SERVERS_OWN = (
    *_ISOLATION_VARIABLES,
    "max_allowed_packet",
    "log_bin",
    "binlog_format",
    "wsrep_on",
    "wsrep_load_data_splitting",
    "secure_timestamp",
    "local_infile",
    "innodb_default_row_format",
    "innodb_force_primary_key",
)
_LOOKED_AT = (*(v.name for v in (*VARIABLES, *time_outs(1))), *_SERVERS_OWN)
SHOW = f"SHOW SESSION VARIABLES WHERE Variable_name IN ({', '.join(map(repr, _LOOKED_AT))})"
"""The statement that shows all that is looked at here."""


def to_set(actual: Mapping[str, str], read_timeout_s: int) -> list[str]:
    """Assignments, as in SET SESSION, for what isn't yet as it has to be. `actual`: what SHOW SESSION VARIABLES says,
    names in lower case; a variable that isn't there is none of this server's.
    """
    return [
        f"{v.name}={_literal(v.value)}"
        for v in (*VARIABLES, *time_outs(read_timeout_s))
        if v.name in actual and not _same(v, actual[v.name])
    ]


def problems(actual: Mapping[str, str]) -> Iterator[str]:
    """What about the variables, after setting them, forbids to write; each names the variable."""
    for variable in VARIABLES:
        if variable.why and variable.name in actual and not _same(variable, actual[variable.name]):
            yield (
                f"{variable.name} is {actual[variable.name]!r} and can't be set here, {variable.value!r} is needed:"
                f" else {variable.why}; set it in the server's configuration, or let this user set it"
            )
    isolation = next((actual[name] for name in _ISOLATION_VARIABLES if name in actual), "REPEATABLE-READ")
    if isolation.upper() != "REPEATABLE-READ":
        yield f"the transaction isolation is {isolation} and can't be set to REPEATABLE-READ"
    packet = int(actual.get("max_allowed_packet") or LEAST_PACKET_BYTES)
    if packet < LEAST_PACKET_BYTES:
        yield (
            f"max_allowed_packet is {packet}, at least {LEAST_PACKET_BYTES} is needed: statements of 1 MiB and single"
            " rows must fit"
        )
    if _on(actual, "log_bin") and actual.get("binlog_format", "").upper() == "STATEMENT":
        yield "binlog_format is STATEMENT: replicas of this server would get other rows than it; set ROW or MIXED"
    if _on(actual, "wsrep_on") and _on(actual, "wsrep_load_data_splitting"):
        yield "wsrep_load_data_splitting is ON: LOAD DATA would commit in parts; set it OFF"
    if _on(actual, "innodb_force_primary_key"):
        yield "innodb_force_primary_key is ON: tables that have no primary key upstream can't be made; set it OFF"
    if _on(actual, "sql_require_primary_key") and not _on(actual, "sql_generate_invisible_primary_key"):
        yield (
            "sql_require_primary_key is ON and can't be set here: tables that have no primary key upstream can't be"
            " made; set it OFF in the server's configuration, or grant this user SESSION_VARIABLES_ADMIN"
        )
    if actual.get("secure_timestamp", "NO").upper() not in ("NO", ""):
        yield "secure_timestamp is not NO: the clock of a DDL can't be set to what it was upstream"


def _on(actual: Mapping[str, str], name: str) -> bool:
    return actual.get(name, "").upper() in ("ON", "1")


def _same(variable: Variable, value: str) -> bool:
    if variable.name == "sql_mode":
        return set(value.upper().split(",")) == set(variable.value.split(","))
    return _canonical(value) == _canonical(variable.value)


def _canonical(value: str) -> str:
    return {"1": "on", "0": "off", "true": "on", "false": "off", "": "off", "utc": "+00:00"}.get(
        value.lower(), value.lower()
    )


def _literal(value: str) -> str:
    return value if value.replace(".", "", 1).isdigit() else f"'{value}'"
