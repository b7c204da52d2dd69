"""Manage a restore's scratch database on the server, which is gone when the restore is over.

sluice_restore_<token>.checkpoint       how far it is, as a pipeline's own, and `sluice_copied`
                                        with the snapshot's chunks
sluice_restore_<token>.sluice_begun     from here on all that has a name of the restore's was
                                        made by it
sluice_restore_<token>.replaced_<n>     tables that were there and are replaced, until the
                                        restore is done
sluice_restore_<token>.t<id>_<seconds>  tables that the log drops, in case that it recovers them
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.restore.lineage import Name
from sluice.etl.restore.target_inspection import inspect_target
from sluice.tidb.table_name import full_name

__all__ = ["ScratchSchema", "scratch_schema_name"]

_BEGUN_TABLE = "sluice_begun"


def scratch_schema_name(token: str) -> str:
    """Return the scratch database's name of the job with that token."""
    return f"sluice_restore_{token}"


class ScratchSchema:
    """The database `schema`.

    Every method commits, can be repeated after a crash, and raises DownstreamError.
    """

    def __init__(self, session: MySQLSession, schema: str) -> None:
        self._session = session
        self._schema = schema

    def exists(self) -> bool:
        """Return whether the restore has written anything."""
        return bool(
            self._session.query(
                "SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", (self._schema,)
            )
        )

    def has_begun(self) -> bool:
        """Return whether tables of the restore's names are its own."""
        return bool(self._tables(_BEGUN_TABLE))

    def begin(self, replaced: Sequence[Name]) -> None:
        """Set aside what is to be replaced.

        Everything of the restore's names is its own from here on.
        """
        if self.has_begun():
            return
        there = inspect_target(self._session, replaced).tables
        for number, name in enumerate(replaced):
            if name in there and not self._tables(_kept_table_name(number)):
                self._session.execute(
                    f"RENAME TABLE {_full(name)} TO {self._own(_kept_table_name(number))}"
                )
        self._session.execute(f"CREATE TABLE {self._own(_BEGUN_TABLE)} (n INT) ENGINE=InnoDB")

    def take_back(
        self, made: Sequence[Name], replaced: Sequence[Name], new_schemas: Sequence[str]
    ) -> list[str]:
        """Remove everything, and put back what was set aside; return what could not be, as text."""
        self._session.execute("SET SESSION foreign_key_checks = 0")
        stays: list[str] = []
        if self.has_begun():
            self.remove(made)
            # what comes back isn't the restore's own
            self._session.execute(f"DROP TABLE {self._own(_BEGUN_TABLE)}")
        for number, name in enumerate(replaced):
            if self._tables(_kept_table_name(number)):
                try:
                    self._session.execute(
                        f"RENAME TABLE {self._own(_kept_table_name(number))} TO {_full(name)}"
                    )
                except DownstreamError as error:
                    if error.transient:
                        raise
                    stays.append(
                        f"{self._schema}.{_kept_table_name(number)}, which was {full_name(*name)}:"
                        f" {error.message}"
                    )
        if not stays:
            self.drop(new_schemas)
        return stays

    def remove(self, names: Sequence[Name]) -> None:
        """Drop the tables, views and sequences of these names, as far as they are there."""
        self._session.execute("SET SESSION foreign_key_checks = 0")
        held = inspect_target(self._session, names)
        for name in held.tables:
            self._session.execute(f"DROP {held.kinds[name]} IF EXISTS {_full(name)}")

    def drop(self, new_schemas: Sequence[str]) -> None:
        """Drop the database, and of those that weren't there before the restore the empty ones."""
        for schema in new_schemas:
            if not self._session.query(
                "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s LIMIT 1", (schema,)
            ):
                self._session.execute(f"DROP DATABASE IF EXISTS {quote_name(schema)}")
        self._session.execute(f"DROP DATABASE IF EXISTS {quote_name(self._schema)}")

    def _tables(self, name: str) -> list[tuple[object, ...]]:
        return self._session.query(
            "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (self._schema, name),
        )

    def _own(self, name: str) -> str:
        return _full((self._schema, name))


def _kept_table_name(number: int) -> str:
    return f"replaced_{number}"


def _full(name: Name) -> str:
    return f"{quote_name(name[0])}.{quote_name(name[1])}"
