"""The SQL port over a recording, without a cluster around it."""

import contextlib
import dataclasses

import pymysql

from sluice.devstack.recording import Recording
from sluice.devstack.tidb.sql import ClusterState, SQLServer, Versions
from tests.devstack.cluster_harness import RECORDINGS

TEXT = dict(pymysql.converters.encoders)
"""`conv` of a connection that gives values as they were sent."""


class Port:
    """A SQL port whose time, GC safe point and regions tests set."""

    def __init__(self, recording, **changes):
        self.recording = Recording(RECORDINGS / recording)
        self.versions = Versions(self.recording)
        self.now = max([self.versions.newest(), *(label.ts for label in self.recording.labels)]) + 1
        self.safe_point = 0
        self.tls = changes.pop("tls", None)
        state = ClusterState(
            self.versions, take_ts=self._take, gc_safe_point=lambda: self.safe_point
        )
        self.server = SQLServer(dataclasses.replace(state, **changes), "127.0.0.1", 0, self.tls)
        self.server.start()

    def _take(self):
        self.now += 1
        return self.now

    def connect(self, **more):
        return pymysql.connect(host="127.0.0.1", port=self.server.port, **{"user": "root", **more})

    @contextlib.contextmanager
    def cursor(self, ts=None, **more):
        """A cursor of a connection of its own, in the past if `ts` is given."""
        with self.connect(**more) as connection, connection.cursor() as cursor:
            if ts is not None:
                cursor.execute(f"SET @@tidb_snapshot = '{ts}'")
            yield cursor


@contextlib.contextmanager
def port(recording, **changes):
    opened = Port(recording, **changes)
    try:
        yield opened
    finally:
        opened.server.stop()


def quoted(name):
    return "`" + name.replace("`", "``") + "`"
