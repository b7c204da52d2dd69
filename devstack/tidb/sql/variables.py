"""A session's variables, with the defaults of a TiDB 6.6."""

from __future__ import annotations

import re
from typing import Any

from sluice.devstack.tidb.sql.errors import SQLError
from sluice.etl.changes import server_errors

VERSION = "8.0.11-TiDB-v6.6.0"

_DEFAULTS: dict[str, Any] = {
    "allow_auto_random_explicit_insert": 0,
    "autocommit": 1,
    "character_set_client": "utf8mb4",
    "character_set_connection": "utf8mb4",
    "character_set_results": "utf8mb4",
    "collation_connection": "utf8mb4_bin",
    "foreign_key_checks": 1,
    "group_concat_max_len": 1024,
    "interactive_timeout": 28800,
    "lower_case_table_names": 2,
    "max_allowed_packet": 67108864,
    "max_execution_time": 0,
    "net_read_timeout": 30,
    "net_write_timeout": 60,
    "sql_mode": (
        "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
        "NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION"
    ),
    "sql_select_limit": (1 << 64) - 1,
    "system_time_zone": "UTC",
    "tidb_distsql_scan_concurrency": 15,
    "tidb_enable_paging": 1,
    "tidb_gc_life_time": "10m0s",
    "tidb_isolation_read_engines": "tikv,tiflash,tidb",
    "tidb_mem_quota_query": 1073741824,
    "tidb_replica_read": "leader",
    "tidb_snapshot": "",
    "time_zone": "SYSTEM",
    "transaction_isolation": "REPEATABLE-READ",
    "tx_isolation": "REPEATABLE-READ",
    "unique_checks": 1,
    "version": VERSION,
    "version_comment": "TiDB Server (Apache License 2.0) Community Edition, MySQL 8.0 compatible",
    "wait_timeout": 28800,
}
_WORDS = {"ON": 1, "OFF": 0}
_OFFSET = re.compile(r"([+-])(\d{1,2}):(\d\d)")


class Variables:
    """The variables that SET changed in this session, over the defaults."""

    def __init__(self) -> None:
        self._values = dict(_DEFAULTS)
        self._overrides: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        """Return the value of `@@name`, `@@session.name` or `@name`. SQLError UNKNOWN_VARIABLE."""
        if not name.startswith("@@"):
            return self._overrides.get(name.lower())
        values = _DEFAULTS if name.lower().startswith("@@global.") else self._values
        return values[self.known(name)]

    def known(self, name: str) -> str:
        """Return the plain name of a system variable. SQLError UNKNOWN_VARIABLE."""
        plain = re.sub(r"^@@", "", name).replace("`", "").lower()
        plain = re.sub(r"^(session|local|global)\.", "", plain)
        if plain not in self._values:
            raise SQLError(server_errors.UNKNOWN_VARIABLE, f"Unknown system variable '{plain}'")
        return plain

    def set(self, name: str, value: Any) -> None:
        """Set a variable.

        Raises SQLError UNKNOWN_VARIABLE for a name, UNKNOWN_ZONE for a time zone that is unknown.
        """
        if name.startswith("@") and not name.startswith("@@"):
            self._overrides[name.lower()] = value
            return
        plain = self.known(name)
        if isinstance(value, str):
            value = _WORDS.get(value.upper(), value)
        if value is None and plain == "character_set_results":
            value = ""
        if plain == "time_zone":
            offset_minutes(str(value))
        self._values[plain] = value

    def like(self, pattern: str) -> list[tuple[str, Any]]:
        """Yield what SHOW VARIABLES LIKE does."""
        expression = re.escape(pattern.lower()).replace("%", ".*").replace("_", ".")
        return [
            (name, value)
            for name, value in sorted(self._values.items())
            if re.fullmatch(expression, name)
        ]

    @property
    def zone_minutes(self) -> int:
        """Return how far east of UTC the session is, in minutes."""
        return offset_minutes(self._values["time_zone"])


def offset_minutes(zone: str) -> int:
    """Return minutes east of UTC.

    The stand-in's machine is in UTC, and it knows no other zones by name. SQLError UNKNOWN_ZONE.
    """
    if zone.upper() in ("SYSTEM", "UTC"):
        return 0
    match = _OFFSET.fullmatch(zone)
    if match is None:
        raise SQLError(server_errors.UNKNOWN_ZONE, f"Unknown or incorrect time zone: '{zone}'")
    sign, hours, minutes = match.groups()
    return (int(hours) * 60 + int(minutes)) * (-1 if sign == "-" else 1)
