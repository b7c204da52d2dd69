"""Airflow's connection type ``sluice``, which names a pipeline."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

from sluice.airflow.agent_client import call_kept
from sluice.errors import SluiceError
from sluice.etl.settings.pipelines import NamedPipeline, pipelines
from sluice.tidb import tso

__all__ = ["SluiceHook"]


class SluiceHook(BaseHook):  # type: ignore[misc] # Airflow is untyped
    """Ask a pipeline, which the connection's field Pipeline names, how far it is."""

    conn_name_attr = "sluice_conn_id"
    default_conn_name = "sluice_default"
    conn_type = "sluice"
    hook_name = "Sluice"

    def __init__(self, sluice_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sluice_conn_id = sluice_conn_id

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return which fields of a connection the form has."""
        return {
            "hidden_fields": ["host", "port", "login", "password", "extra"],
            "relabeling": {"schema": "Pipeline"},
            "placeholders": {"schema": "name of its file in SLUICE_PIPELINES, as in shop"},
        }

    def get_conn(self) -> NamedPipeline:
        """Return the pipeline. Raises SettingsError if there is none of that name."""
        return pipelines().named(self.get_connection(self.sluice_conn_id).schema or "")

    def completed_through(self, place: str = "downstream") -> int:
        """Return the TSO through which ``downstream`` or ``archive`` is complete, 0 for nothing.

        Raises SluiceError.
        """
        return int(call_kept(self.get_conn(), "completed_through", place=place)["ts"])

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the pipeline can be asked, and how far it is, or what is wrong."""
        try:
            found = call_kept(self.get_conn(), "completed_through", place="downstream")
        except SluiceError as error:
            return False, str(error)
        if found["problem"]:
            return False, found["problem"]
        if not found["ts"]:
            return True, "The pipeline answers; nothing is downstream yet."
        return (
            True,
            f"The downstream is complete through {tso.time_text(found['ts'])}.",
        )
