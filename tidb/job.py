"""A DDL job as TiDB's job history holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.errors import SluiceError
from sluice.tidb.ddl_actions import DROPS_COLUMNS
from sluice.tidb.schema import STATE_DELETE_ONLY

_DONE, _SYNCED = 4, 6


class HistoryError(SluiceError, ValueError):
    """A DDL job that can't be applied; names the job and what is missing."""

    hint = "report the DDL job with its statement: Sluice doesn't know what it does"


@dataclass(frozen=True, slots=True)
class DdlHistoryJob:
    """A DDL job. `schema_version` 0 means that it changed nothing (failed or cancelled)."""

    id: int
    type: int
    state: int
    schema_state: int
    schema_id: int
    table_id: int
    schema_name: str
    table_name: str
    query: str
    schema_version: int
    finished_ts: int
    args: Any = field(repr=False)
    db_info: Mapping[str, Any] | None = field(repr=False)
    table_info: Mapping[str, Any] | None = field(repr=False)
    table_infos: tuple[Mapping[str, Any], ...] = field(repr=False)
    start_ts: int = 0
    """TSO from which on the job ran: nothing that it changed can be older."""
    time_zone: str = ""
    """The zone in which the job converted values, a name or an offset like ``+08:00``; "" where
    TiDB didn't note it.
    """
    sql_mode: int | None = None
    """The SQL mode in which the job converted values, TiDB's bits; None where TiDB didn't note it.
    """

    @classmethod
    def from_json(
        cls, document: Mapping[str, Any], schema_state: int | None = None
    ) -> DdlHistoryJob:
        """Parse a job's JSON as the DDL job history holds it.

        `schema_state`: the binlog's ddl_schema_state, where the job was found through a binlog: the
        history only knows the last state, the extra binlog of DROP COLUMN has an earlier one.
        """
        try:
            binlog, reorg = document.get("binlog") or {}, document.get("reorg_meta") or {}
            state = document.get("schema_state") if schema_state is None else schema_state
            return cls(
                id=int(document["id"]),
                type=int(document["type"]),
                state=int(document.get("state") or 0),
                schema_state=int(state or 0),
                schema_id=int(document.get("schema_id") or 0),
                table_id=int(document.get("table_id") or 0),
                schema_name=document.get("schema_name") or "",
                table_name=document.get("table_name") or "",
                query=document.get("query") or "",
                schema_version=int(binlog.get("SchemaVersion") or 0),
                finished_ts=int(binlog.get("FinishedTS") or 0),
                args=document.get("raw_args"),
                db_info=binlog.get("DBInfo"),
                table_info=binlog.get("TableInfo"),
                table_infos=tuple(binlog.get("MultipleTableInfos") or ()),
                start_ts=int(document.get("real_start_ts") or document.get("start_ts") or 0),
                time_zone=_time_zone(reorg.get("location") or {}),
                sql_mode=None if reorg.get("sql_mode") is None else int(reorg["sql_mode"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise HistoryError(f"a DDL job document lacks or garbles {error}") from error

    def without_schema(self) -> DdlHistoryJob:
        """Return the same job without its definitions, which are most of its size."""
        return replace(self, args=None, db_info=None, table_info=None, table_infos=())

    @property
    def succeeded(self) -> bool:
        """Return whether the job was neither cancelled nor rolled back."""
        return self.state in (_DONE, _SYNCED)

    @property
    def finished(self) -> bool:
        """Return whether the job succeeded and left a schema version."""
        return self.succeeded and self.schema_version > 0

    @property
    def starts_dropping_column(self) -> bool:
        """Return whether this is the extra event of DROP COLUMN.

        Rows stop carrying the column, the table still has it.
        """
        return self.type in DROPS_COLUMNS and self.schema_state == STATE_DELETE_ONLY


def _time_zone(location: Mapping[str, Any]) -> str:
    """Return the zone in TiDB's TimeZoneLocation.

    With seconds east of UTC the name means nothing (it is UTC); without them it is the zone's.
    """
    offset = int(location.get("offset") or 0)
    minutes = abs(offset) // 60
    if offset:
        return f"{'-' if offset < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"
    name = str(location.get("name") or "")
    return (
        "Local" if name.lower() in ("local", "system") else name
    )  # of TiDB's machine: no server knows it by this name


def job_text(job: DdlHistoryJob) -> str:
    """Return the job's number, type, schema version and table, for messages.

    Its statement may have defaults that no log may show.
    """
    return (
        f"DDL job {job.id} (type {job.type}, schema version {job.schema_version}, table"
        f" {job.table_name!r} of schema {job.schema_name!r})"
    )


def require_info(
    job: DdlHistoryJob, value: Mapping[str, Any] | None, what: str
) -> Mapping[str, Any]:
    """Return what a job of its type carries. Raises HistoryError if it is None."""
    if value is None:
        raise HistoryError(f"{job_text(job)} carries no {what}")
    return value


def recovered_tables(args: Any) -> list[Mapping[str, Any]]:
    """Return the TableInfo of each table that FLASHBACK DATABASE brings back."""
    first = args[0] if isinstance(args, list) and args else args
    found = first.get("RecoverTabsInfo") if isinstance(first, Mapping) else None
    return [t["TableInfo"] for t in found or () if isinstance(t, Mapping) and t.get("TableInfo")]
