"""Check the fields of forms, and make requests of them, one function for each kind of jobs.

A form comes from Airflow, where its DAG's parameters have checked types; from the pages; or from a
command, as its options. An empty field counts as missing. Moments are texts, see
`sluice.tidb.moments`, or TSOs; names of tables are lines. All functions raise MomentError for a
moment, and SettingsError for a settings file, that can't be read.

A request's class is imported when one is made: Airflow's pages check forms, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.tidb import moments

if TYPE_CHECKING:
    from sluice.etl.copy import BootstrapRequest
    from sluice.etl.copy.backfill.request import BackfillRequest
    from sluice.etl.history.snapshots.request import SnapshotRequest
    from sluice.etl.restore import FilesRequest, RestoreRequest
    from sluice.etl.restore.drill.job import RestoreTestRequest
    from sluice.etl.settings import Settings
    from sluice.etl.verify.reapply.request import ReplayRequest
    from sluice.etl.verify.result import VerifyRequest

__all__ = [
    "backfill_request",
    "bootstrap_request",
    "check_restore_allowed",
    "drill_request",
    "files_request",
    "in_upstreams_time",
    "reapply_request",
    "restore_request",
    "snapshot_request",
    "verify_request",
]

_ESCAPES = {"\\r": "\r", "\\n": "\n", "\\t": "\t"}

_MOMENT_FIELDS = frozenset(("at", "since", "until"))

Form = Mapping[str, Any]


def backfill_request(form: Form) -> BackfillRequest:
    """Return the request for a backfill.

    Fields: `tables`, `where`, `from_key`, `to_key`, `mode`, `rows_per_second`. Raises
    BackfillError.
    """
    from sluice.etl.copy.backfill.request import BackfillRequest

    request = BackfillRequest(
        _names(form["tables"]),
        form["where"] or "",
        form["from_key"] or "",
        form["to_key"] or "",
        form["mode"],
        form["rows_per_second"] or 0,
    )
    request.check()
    return request


def bootstrap_request(form: Form, by: str) -> BootstrapRequest:
    r"""Return the request for a bootstrap that the user `by` asks for.

    Fields: `source`, `tables`, `into`, and of a dump's files `csv_separator`, `csv_delimiter`,
    `csv_line_terminator` (None where the header shows it; with \r, \n and \t for these),
    `csv_null_value`, `csv_header`, `escape_backslash`.
    """
    from sluice.etl.copy import BootstrapRequest, CsvFormat, DumplingOptions

    csv = CsvFormat(
        separator=_unescaped(form["csv_separator"]),
        delimiter=form["csv_delimiter"],
        terminator=_unescaped(form["csv_line_terminator"]),
        header=form["csv_header"],
        null=form["csv_null_value"],
    )
    source = form["source"].strip()
    return BootstrapRequest(
        source if "://" in source else str(Path(source).absolute()),
        DumplingOptions(csv, escapes=form["escape_backslash"]),
        _names(form["tables"]),
        _names(form["into"]),
        by,
    )


def drill_request(form: Form) -> RestoreTestRequest:
    """Return the request for a restore drill; fields: `tables` (how many), `max_mb`, `at`."""
    from sluice.etl.restore.drill.job import RestoreTestRequest

    usual = RestoreTestRequest()
    return RestoreTestRequest(
        int(form.get("tables") or usual.tables),
        int(form["max_mb"]) * 1_000_000 if form.get("max_mb") else usual.max_bytes,
        _moment(form.get("at")) or None,
    )


def files_request(form: Form) -> FilesRequest | None:
    """Return the request for a restore into files; None without `folder`.

    Further fields: `until`, `tables`, `format`, `beside`. Raises RestoreError for fields that are
    about databases.
    """
    from sluice.etl.restore import FilesRequest, RestoreError

    if not form.get("folder"):
        return None
    about_servers = [
        name for name in ("into", "connection", "target", "replacing") if form.get(name)
    ]
    if about_servers or not form.get("verify", True):
        what = ", ".join(about_servers) or "restoring without verifying"
        raise RestoreError(f"these options do not apply to a restore into files: {what}")
    return FilesRequest(
        _moment(form["until"]),
        _names(form.get("tables")),
        Path(form["folder"]).absolute(),
        form.get("format") or "parquet",
        bool(form.get("beside")),
    )


def reapply_request(form: Form) -> ReplayRequest:
    """Return the request for a reapply.

    Fields: `since`, `until`, `target` (a settings file's path), `tables`, `rows_per_second`.
    """
    from sluice.etl.settings import read_target
    from sluice.etl.verify.reapply.request import ReplayRequest

    return ReplayRequest(
        moments.parse_moment(str(form["since"])),  # an empty one is refused
        _moment(form["until"]),
        read_target(form["target"]) if form["target"] else {},
        _names(form["tables"]),
        form["rows_per_second"] or 0,
    )


def restore_request(form: Form) -> RestoreRequest:
    """Return the request for a restore into a database.

    Fields: `until`, `tables`, `into`, `target` (a settings file's path), `connection` (an Airflow
    connection's id), `replacing`, `verify`. Raises RestoreError.
    """
    from sluice.etl.restore import SAME_SERVER_INTO, RestoreError, RestoreRequest
    from sluice.etl.settings import read_target

    path, connection = form.get("target"), form.get("connection")
    if path and connection:
        raise RestoreError(
            "a settings file and an Airflow connection: only one of them can name the target"
        )
    target = (
        read_target(path) if path else _downstream_from_connection(connection) if connection else {}
    )
    return RestoreRequest(
        _moment(form["until"]),
        _names(form.get("tables")),
        form.get("into") or ("{schema}" if target else SAME_SERVER_INTO),
        target,
        _names(form.get("replacing")),
        verify=bool(form.get("verify", True)),
    )


def check_restore_allowed(settings: Settings, form: Form) -> None:
    """Raise RestoreError unless `[restore]` allows the place that Airflow's form names.

    Without that list, the right to trigger the DAG would be the right to have any password that
    Airflow's tasks can read sent to a server of one's choice, and any file written that the tasks
    can write.
    """
    from sluice.etl.restore import RestoreError

    path, connection, folder = form.get("target"), form.get("connection"), form.get("folder")
    wanted = [("targets", path)] if path else []
    wanted += [("targets", f"connection:{connection}")] if connection else []
    allowed = settings.restore
    refused = [(key, place) for key, place in wanted if place not in allowed.targets]
    if folder and not any(
        Path(folder).resolve().is_relative_to(Path(each).resolve()) for each in allowed.folders
    ):
        refused.append(("folders", folder))
    if refused:
        key, place = refused[0]
        raise RestoreError(
            f"the DAG may not restore to {place}: it isn't among [restore] {key}",
            hint=(
                f"add it to [restore] {key} in the pipeline's settings, or use the command `sluice"
                " restore`"
            ),
        )


def snapshot_request(form: Form, default_source: str) -> SnapshotRequest:
    """Return the request for a snapshot; fields: `source`, `full`, `escape_backslash`.

    `default_source`: the setting `[archive] snapshots-from`, "" for the best one.
    """
    from sluice.etl.copy import DumplingOptions
    from sluice.etl.history.snapshots.request import AUTO, SnapshotRequest

    return SnapshotRequest.parse(
        form["source"] or default_source or AUTO,
        full=form["full"],
        options=DumplingOptions(escapes=form["escape_backslash"]),
    )


def in_upstreams_time(settings: Settings, form: Form) -> Form:
    """Return the form with TSOs for times ago, which count from the upstream's now."""
    from sluice.etl.upstream_clock import upstream_moment

    return {
        name: upstream_moment(settings, value)
        if name in _MOMENT_FIELDS and isinstance(value, str) and moments.is_relative(value)
        else value
        for name, value in form.items()
    }


def verify_request(form: Form) -> VerifyRequest:
    """Return the request for a verification; fields: `tables`, `how`."""
    from sluice.etl.verify.result import AUTO, VerifyRequest

    return VerifyRequest(_names(form["tables"]), form["how"] or AUTO)


def _moment(field: str | int | None) -> int:
    """Return a moment's TSO; 0 for an empty field."""
    if isinstance(field, int):
        return field
    return moments.parse_moment(field) if field else 0


def _names(lines: Iterable[str] | None) -> tuple[str, ...]:
    """Return the names in a field, a name a line; empty lines are ignored."""
    return tuple(line.strip() for line in lines or () if line.strip())


def _unescaped(text: str | None) -> str | None:
    for spelled, meant in _ESCAPES.items():
        text = text.replace(spelled, meant) if text is not None else None
    return text


def _downstream_from_connection(name: str) -> dict[str, Any]:
    """Return an Airflow connection as a downstream's settings; its password stays where it is."""
    from sluice.etl.restore import RestoreError
    from sluice.etl.settings.database_connection import database_address
    from sluice.etl.settings.errors import SettingsError

    try:
        server = database_address("the Airflow connection", name)
    except SettingsError as error:
        raise RestoreError(str(error), transient=error.transient) from None
    return {"downstream": server | {"password-connection": name}}
