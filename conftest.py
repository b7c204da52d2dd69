"""Fixtures that several folders of tests share."""

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ("tests.etl.mariadb_fixture", "tests.upstream.etcd_fixture")

# How fast a machine draws and runs an example says nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def _reaches_the_disk(descriptor: int) -> None:
    """In place of fsync and fdatasync in the tests' own processes: raises what they raise of a wrong descriptor.

    What a process has written outlives its kill -9 without them, and no test pulls the machine's plug. Thousands of
    them were most of the time of the tests that write many small files. Programs that tests start call the real ones.
    """
    os.fstat(descriptor)


os.fsync = os.fdatasync = _reaches_the_disk
