"""Fixtures that several folders of tests share."""

pytest_plugins = ("tests.etl.mariadb_fixture", "tests.upstream.etcd_fixture")
