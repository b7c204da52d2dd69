"""Airflow's simple auth manager, narrowed for two people as roles of FAB or Keycloak would narrow
it.
"""

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

from sluice.plugins.auth import ROW_VALUES

SEES_NO_DAG = "rex"
SEES_NO_ROWS = "val"


class NarrowAuthManager(SimpleAuthManager):
    """Refuse one person every DAG, and another one what rows hold."""

    def is_authorized_dag(self, *, method, user, access_entity=None, details=None):
        if user.get_name() == SEES_NO_DAG:
            return False
        return super().is_authorized_dag(
            method=method, user=user, access_entity=access_entity, details=details
        )

    def is_authorized_custom_view(self, *, method, resource_name, user):
        return (user.get_name(), resource_name) != (SEES_NO_ROWS, ROW_VALUES)
