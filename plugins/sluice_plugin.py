"""Register the plugin with Airflow, by the wheel's entry point `airflow.plugins`.

Every process of Airflow imports this, tasks among them, so the application is made only when the
api-server asks.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/sluice"
"""The pages' path, below Airflow's own address."""


class SluicePlugin(AirflowPlugin):  # type: ignore[misc] # Airflow is untyped
    """One entry in the navigation, which leads to the pages."""

    name = "sluice"
    external_views = [  # noqa: RUF012 # as Airflow reads it
        {
            "name": "Sluice",
            # relative to Airflow's <base>, so that it is right behind a prefix, too
            "href": f"{PREFIX[1:]}/overview",
            "icon": f"{PREFIX[1:]}/static/icon.svg",
            "icon_dark_mode": f"{PREFIX[1:]}/static/icon-dark.svg",
            "url_route": "sluice",
            "destination": "nav",
            "nav_top_level": True,
        }
    ]

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:
        """Return the application under its prefix."""
        from sluice.plugins.app import create_app

        return [{"app": create_app(), "url_prefix": PREFIX, "name": "Sluice"}]
