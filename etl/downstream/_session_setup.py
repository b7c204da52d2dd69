"""Set the session variables that writing relies on, and check them afterwards.

An error names what the server does not grant. docs/reference/servers.md has this list for
operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sluice.etl.changes import server_errors
from sluice.etl.downstream._connection import DownstreamError, RunQuery

STRICT_SQL_MODE = (
    "STRICT_TRANS_TABLES,STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION"
    ",ALLOW_INVALID_DATES"
)
LENIENT_SQL_MODE = "NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES"
MIN_PACKET_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class SessionVariable:
    """A session variable and the value it gets, as SHOW VARIABLES spells it.

    `why`: what would go wrong, if the value is a must.
    """

    name: str
    value: str
    why: str = ""


_WRONG_ROWS = "statements would find or change other rows than they name"
VARIABLES = (
    SessionVariable(
        "sql_mode", STRICT_SQL_MODE, "values that don't fit would be changed instead of refused"
    ),
    SessionVariable("time_zone", "+00:00", "TIMESTAMPs would be off by the zone"),
    SessionVariable(
        "explicit_defaults_for_timestamp",
        "ON",
        "NULL in a TIMESTAMP would become the time of writing, also in rows that are there",
    ),
    SessionVariable(
        "foreign_key_checks",
        "OFF",
        "the upstream's cascades come as rows; here they would happen twice",
    ),
    SessionVariable("unique_checks", "ON", "duplicates could get into secondary keys"),
    SessionVariable("character_set_client", "utf8mb4", "text would arrive as other characters"),
    SessionVariable(
        "character_set_connection", "utf8mb4", "text would be compared as other characters"
    ),
    SessionVariable("character_set_results", "utf8mb4", "text would be read as other characters"),
    SessionVariable("autocommit", "OFF", "parts of a transaction would be committed by themselves"),
    SessionVariable(
        "completion_type", "NO_CHAIN", "COMMIT would begin or end more than its name has"
    ),
    SessionVariable("sql_safe_updates", "OFF", "rows without a key could not be removed"),
    SessionVariable("sql_auto_is_null", "OFF", _WRONG_ROWS),
    SessionVariable("sql_big_selects", "ON"),
    SessionVariable("sql_notes", "ON", "values that were changed would not be noticed"),
    SessionVariable("max_error_count", "64"),
    SessionVariable("default_storage_engine", "InnoDB", "tables would have no transactions"),
    SessionVariable("innodb_strict_mode", "ON"),
    SessionVariable(
        "default_week_format", "0", "generated columns would hold other values than upstream"
    ),
    SessionVariable(
        "div_precision_increment", "4", "generated columns would hold other values than upstream"
    ),
    SessionVariable(
        "lc_time_names", "en_US", "generated columns would hold other values than upstream"
    ),
    # MariaDB
    # long IN lists stay ranges on the key
    SessionVariable("in_predicate_conversion_threshold", "0"),
    # TiDB has checked what it checks; MariaDB's JSON check refuses documents nested deeper than 32.
    SessionVariable(
        "check_constraint_checks", "OFF", "rows that the upstream has would be refused"
    ),
    SessionVariable("system_versioning_alter_history", "KEEP"),
    SessionVariable("max_statement_time", "0.000000"),
    SessionVariable(
        "sql_if_exists", "OFF", "a DDL on what isn't there would look as if it had been done"
    ),
    SessionVariable("character_set_collations", ""),
    SessionVariable("tx_read_only", "OFF", "nothing could be written"),
    # MySQL
    SessionVariable("transaction_read_only", "OFF", "nothing could be written"),
    SessionVariable(
        "information_schema_stats_expiry", "0", "what a DDL has left would be seen a day later"
    ),
    SessionVariable("range_optimizer_max_mem_size", "0"),  # long OR lists stay ranges on the key
    SessionVariable("sql_require_primary_key", "OFF"),
    SessionVariable("sql_generate_invisible_primary_key", "OFF"),
    # TiDB
    SessionVariable(
        "tidb_txn_mode",
        "pessimistic",
        "SELECT ... FOR UPDATE would not lock, and two processes could write side by side",
    ),
    SessionVariable("tidb_constraint_check_in_place", "ON"),
    SessionVariable(
        "tidb_constraint_check_in_place_pessimistic",
        "ON",
        "duplicates would be noticed after the fact",
    ),
    SessionVariable(
        "tidb_disable_txn_auto_retry",
        "ON",
        "a transaction that lost a conflict would be tried again with what it had read before",
    ),
    SessionVariable("tidb_batch_insert", "OFF", "a transaction would be committed in parts"),
    SessionVariable("tidb_batch_delete", "OFF", "a transaction would be committed in parts"),
    SessionVariable("tidb_batch_commit", "OFF", "a transaction would be committed in parts"),
    SessionVariable("tidb_dml_batch_size", "0"),
    SessionVariable("tidb_dml_type", "standard", "a transaction would be committed in parts"),
    SessionVariable("tidb_snapshot", "", "the past would be read"),
    SessionVariable("tidb_read_staleness", "0", "the past would be read"),
    SessionVariable("tidb_low_resolution_tso", "OFF", "the past would be read"),
    SessionVariable(
        "allow_auto_random_explicit_insert",
        "ON",
        "rows of tables with AUTO_RANDOM would be refused",
    ),
    SessionVariable("tidb_skip_utf8_check", "ON"),  # the upstream has checked what it checks
    SessionVariable("tidb_skip_ascii_check", "ON"),
    SessionVariable("tidb_enable_exchange_partition", "ON"),
    SessionVariable("tidb_enable_list_partition", "ON"),
)
_IDLE_TIMEOUT_S, _ROW_LOCK_TIMEOUT_S = 900, 50


def timeout_variables(read_timeout_s: int) -> tuple[SessionVariable, ...]:
    """Return the variables that end a session whose client stands still or is cut off.

    Its locks must not stay for the server's eight hours. The server gives up waiting for a lock no
    later than the client does.
    """
    idle_s = str(max(_IDLE_TIMEOUT_S, 3 * read_timeout_s))
    return (
        SessionVariable("wait_timeout", idle_s),
        SessionVariable("idle_transaction_timeout", idle_s),  # MariaDB
        SessionVariable("lock_wait_timeout", str(read_timeout_s)),  # metadata locks
        SessionVariable("innodb_lock_wait_timeout", str(min(_ROW_LOCK_TIMEOUT_S, read_timeout_s))),
        SessionVariable("max_execution_time", "0"),  # MySQL
    )


ALL_ROWS = "SET SESSION sql_select_limit = 18446744073709551615"
"""Executed first: sql_select_limit cuts off the rows of SHOW VARIABLES, too."""
ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
_ISOLATION_VARIABLES = ("transaction_isolation", "tx_isolation")
_SERVER_DEFINED = (
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
_CHECKED_VARIABLES = (*(v.name for v in (*VARIABLES, *timeout_variables(1))), *_SERVER_DEFINED)
SHOW = f"SHOW SESSION VARIABLES WHERE Variable_name IN ({', '.join(map(repr, _CHECKED_VARIABLES))})"
"""The statement that shows all that is looked at here."""


def assignments(actual: Mapping[str, str], read_timeout_s: int) -> list[str]:
    """Return assignments, as in SET SESSION, for variables that differ from what is needed.

    `actual`: the rows of SHOW SESSION VARIABLES, names in lower case; this server does not have a
    variable that is missing there.
    """
    return [
        f"{v.name}={_literal(v.value)}"
        for v in (*VARIABLES, *timeout_variables(read_timeout_s))
        if v.name in actual and not _same(v, actual[v.name])
    ]


def problems(actual: Mapping[str, str]) -> Iterator[str]:
    """Yield what about the variables, after setting them, forbids to write, with their names."""
    for variable in VARIABLES:
        if variable.why and variable.name in actual and not _same(variable, actual[variable.name]):
            yield (
                f"{variable.name} is {actual[variable.name]!r} and can't be set here,"
                f" {variable.value!r} is needed: else {variable.why}; set it in the server's"
                " configuration, or let this user set it"
            )
    isolation = next(
        (actual[name] for name in _ISOLATION_VARIABLES if name in actual), "REPEATABLE-READ"
    )
    if isolation.upper() != "REPEATABLE-READ":
        yield f"the transaction isolation is {isolation} and can't be set to REPEATABLE-READ"
    packet = int(actual.get("max_allowed_packet") or MIN_PACKET_BYTES)
    if packet < MIN_PACKET_BYTES:
        yield (
            f"max_allowed_packet is {packet}, at least {MIN_PACKET_BYTES} is needed: statements of"
            " 1 MiB and single rows must fit"
        )
    if _on(actual, "log_bin") and actual.get("binlog_format", "").upper() == "STATEMENT":
        yield (
            "binlog_format is STATEMENT: replicas of this server would get other rows than it; set"
            " ROW or MIXED"
        )
    if _on(actual, "wsrep_on") and _on(actual, "wsrep_load_data_splitting"):
        yield "wsrep_load_data_splitting is ON: LOAD DATA would commit in parts; set it OFF"
    if _on(actual, "innodb_force_primary_key"):
        yield (
            "innodb_force_primary_key is ON: tables that have no primary key upstream can't be"
            " made; set it OFF"
        )
    if _on(actual, "sql_require_primary_key") and not _on(
        actual, "sql_generate_invisible_primary_key"
    ):
        yield (
            "sql_require_primary_key is ON and can't be set here: tables that have no primary key"
            " upstream can't be made; set it OFF in the server's configuration, or grant this user"
            " SESSION_VARIABLES_ADMIN"
        )
    if actual.get("secure_timestamp", "NO").upper() not in ("NO", ""):
        yield "secure_timestamp is not NO: the clock of a DDL can't be set to what it was upstream"


def _on(actual: Mapping[str, str], name: str) -> bool:
    return actual.get(name, "").upper() in ("ON", "1")


def _same(variable: SessionVariable, value: str) -> bool:
    if variable.name == "sql_mode":
        return set(value.upper().split(",")) == set(variable.value.split(","))
    return _canonical(value) == _canonical(variable.value)


def _canonical(value: str) -> str:
    return {"1": "on", "0": "off", "true": "on", "false": "off", "": "off", "utc": "+00:00"}.get(
        value.lower(), value.lower()
    )


def _literal(value: str) -> str:
    return value if value.replace(".", "", 1).isdigit() else f"'{value}'"


def _variables(query: RunQuery) -> dict[str, str]:
    return {str(name).lower(): str(value or "") for name, value in query(SHOW)}


def set_up(query: RunQuery, read_timeout_s: int, address: str) -> dict[str, str]:
    """Set the session's variables, and return all of them as they are then.

    Raises DownstreamError, also if what writing needs can't be set.
    """
    query(ALL_ROWS)
    wanted = assignments(_variables(query), read_timeout_s)
    for statement in [f"SET SESSION {assignment}" for assignment in wanted] + [ISOLATION]:
        try:
            query(statement)
        except DownstreamError as error:  # what is refused is looked at below
            if error.transient:
                raise
    variables = _variables(query)
    wrong = list(problems(variables))
    if wrong:
        raise DownstreamError(
            server_errors.UNFIT,
            f"{address} can't be written to as it is: {'; '.join(wrong)}",
        )
    return variables
