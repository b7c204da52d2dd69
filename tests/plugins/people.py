"""Airflow's auth manager and its users, for an application without Airflow's api-server."""

from __future__ import annotations

from airflow.api_fastapi.core_api import security

from sluice.plugins import auth


class Person:
    def __init__(self, name):
        self._name = name

    def get_name(self):
        return self._name


class Manager:
    """Everybody may do everything, but val may not see rows, and vic may not trigger DAGs."""

    def is_authorized_view(self, *, access_view, user):
        return True

    def is_authorized_dag(self, *, method, user, access_entity=None, details=None):
        return method == "GET" or user.get_name() != "vic"

    def is_authorized_custom_view(self, *, method, resource_name, user):
        return user.get_name() != "val"


def use_auth_manager(monkeypatch):
    for module in (auth, security):
        monkeypatch.setattr(module, "get_auth_manager", Manager)
    monkeypatch.setattr(security.DagModel, "get_team_name", lambda dag_id: None)


def as_person(app, name):
    app.dependency_overrides[auth.get_user] = lambda: Person(name)
