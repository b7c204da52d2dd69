"""Fixtures that several folders of tests share."""

from hypothesis import HealthCheck, settings

pytest_plugins = ("tests.etl.mariadb_fixture", "tests.upstream.etcd_fixture")

# How fast a machine draws and runs an example says nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
