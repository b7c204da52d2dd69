"""Parse a restore's request from the command line and from Airflow's form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.etl.copy.request import names_from_lines
from sluice.etl.restore.errors import RestoreError
from sluice.etl.restore.request import SAME_SERVER_INTO, FilesRequest, RestoreRequest
from sluice.etl.settings import Settings, read_target
from sluice.tidb import tso

__all__ = ["check_allowed", "files_request_from_form", "restore_request_from_form"]


def restore_request_from_form(form: Mapping[str, Any]) -> RestoreRequest:
    """Parse the request in a form's fields.

    They are `until` (see `sluice.tidb.tso.parse_moment`), `tables`, `into`, `target` (a settings
    file's path), `connection` (an Airflow connection's id), `replacing`, `verify`; an empty field
    counts as missing. Raises RestoreError, SettingsError, MomentError.
    """
    path, connection = form.get("target"), form.get("connection")
    if path and connection:
        raise RestoreError(
            "a settings file and an Airflow connection: only one of them can name the target"
        )
    target = (
        read_target(path) if path else _downstream_from_connection(connection) if connection else {}
    )
    return RestoreRequest(
        tso.parse_moment(form["until"]) if form["until"] else 0,
        names_from_lines(form.get("tables")),
        form.get("into") or ("{schema}" if target else SAME_SERVER_INTO),
        target,
        names_from_lines(form.get("replacing")),
        verify=bool(form.get("verify", True)),
    )


def files_request_from_form(form: Mapping[str, Any]) -> FilesRequest | None:
    """Parse the request for files in a form's fields: `folder`, None without one.

    `format`, `beside`; `until` and `tables` as above. Raises RestoreError for fields that are about
    databases, MomentError.
    """
    if not form.get("folder"):
        return None
    about_servers = [
        name for name in ("into", "connection", "target", "replacing") if form.get(name)
    ]
    if about_servers or not form.get("verify", True):
        what = ", ".join(about_servers) or "restoring without verifying"
        raise RestoreError(f"these options do not apply to a restore into files: {what}")
    return FilesRequest(
        tso.parse_moment(form["until"]) if form["until"] else 0,
        names_from_lines(form.get("tables")),
        Path(form["folder"]).absolute(),
        form.get("format") or "parquet",
        bool(form.get("beside")),
    )


def check_allowed(settings: Settings, form: Mapping[str, Any]) -> None:
    """Raise RestoreError unless `[restore]` allows the place that Airflow's form names.

    Without that list, the right to trigger the DAG would be the right to have any password that
    Airflow's tasks can read sent to a server of one's choice, and any file written that the tasks
    can write.
    """
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


def _downstream_from_connection(name: str) -> dict[str, Any]:
    """Return an Airflow connection as a downstream's settings; its password stays where it is."""
    from airflow.sdk import Connection

    try:
        found = Connection.get(name)
    except Exception as error:  # Airflow's own: not found, or no way to ask for it now
        raise RestoreError(
            f"the Airflow connection {name}: {type(error).__name__}: {error}"
        ) from None
    if not found.host:
        raise RestoreError(f"the Airflow connection {name} names no host")
    server: dict[str, Any] = {"host": found.host, "password-connection": name}
    if found.port:
        server["port"] = int(found.port)
    if found.login:
        server["user"] = found.login
    return {"downstream": server}
