"""Describe the downstream's server and what it can do, from its version and a few variables.

MariaDB 10.11 and MySQL 9.7 are run by the tests. MySQL 5.7, 8.0 and 8.4 are by their
documentation, TiDB by what was measured on 6.6: every line of docs/reference/servers.md is a field
here. Nothing else asks for a product's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.errors import SluiceError

_MARIADB_COLLATION = {
    "utf8mb4_0900_ai_ci": "utf8mb4_uca1400_nopad_ai_ci",
    "utf8mb4_0900_bin": "utf8mb4_nopad_bin",
}
_SHORT_KEY_ROW_FORMATS = ("compact", "redundant")  # of 767 bytes
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_TIDB_VERSION = re.compile(r"tidb-v?(\d+)\.(\d+)(?:\.(\d+))?", re.IGNORECASE)

MYSQL_PRODUCT, MARIADB_PRODUCT, TIDB_PRODUCT = "MySQL", "MariaDB", "TiDB"


class UnknownServerError(SluiceError, ValueError):
    """The version string names no server that is known; it is in the text."""

    hint = "use MariaDB, MySQL or TiDB, or a proxy whose version names one of them"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One server's abilities. Made by `of`; equal servers give equal dialects."""

    product: str
    """``MariaDB``, ``MySQL`` or ``TiDB``."""
    version: tuple[int, int, int]
    text: str
    """The version as the server reports it, for messages."""
    has_local_infile: bool = True
    """True if the server takes LOAD DATA LOCAL at all (``local_infile``)."""
    row_format: str = ""
    """The row format in a table's options: "", unless the server's default limits keys."""

    def __str__(self) -> str:
        """Return the server's name for people: ``MariaDB 10.11.19``."""
        return f"{self.product} {'.'.join(map(str, self.version))}"

    @classmethod
    def from_version(cls, version: str, variables: Mapping[str, str] | None = None) -> Dialect:
        """Return the dialect of a server with this `version` (``VERSION()``, or the handshake's).

        `variables`: ``local_infile`` and ``innodb_default_row_format``, where known. Raises
        UnknownServerError.
        """
        given = {name.lower(): str(value) for name, value in (variables or {}).items()}
        product, found = _identify_product(version)
        return cls(
            product,
            found,
            version,
            given.get("local_infile", "1").upper() in ("1", "ON"),
            (
                " ROW_FORMAT=DYNAMIC"
                if given.get("innodb_default_row_format", "").lower() in _SHORT_KEY_ROW_FORMATS
                else ""
            ),
        )

    @property
    def is_tidb(self) -> bool:
        """Return whether a TiDB is written to. Ask for an ability where there is one."""
        return self.product == TIDB_PRODUCT

    # Writing rows

    @property
    def supports_transactional_load(self) -> bool:
        """Return whether LOAD DATA LOCAL sends rows that ROLLBACK undoes.

        TiDB before 7.6 commits the open transaction with it, so there, and where the server
        refuses it, rows go as REPLACE statements.
        """
        return self.has_local_infile and not self.is_tidb

    @property
    def supports_pipelining(self) -> bool:
        """Return whether statements and rows may be sent before earlier ones are answered.

        The rows are those of a LOAD DATA LOCAL. MariaDB and MySQL take them; an Aurora that calls
        itself 5.7 is known to hang.
        """
        return self.supports_transactional_load and (
            self.product == MARIADB_PRODUCT or self.version >= (8, 0, 0)
        )

    # Sessions

    @property
    def rounds_time_by_mode(self) -> bool:
        """Return whether TIME_ROUND_FRACTIONAL in the sql_mode makes it round times as TiDB does.

        It is about what a time loses; the others always round.
        """
        return self.product == MARIADB_PRODUCT

    @property
    def reads_expressions_by_mode(self) -> bool:
        r"""Return whether the session that opens a table says what `\\` in its expressions means.

        MySQL writes them down with escapes, and reads them by that session's sql_mode, for all
        sessions: under NO_BACKSLASH_ESCAPES `'it\\'s'` is no string, and `'a\\\\b'` another one.
        """
        return self.product == MYSQL_PRODUCT

    @property
    def show_warnings(self) -> str:
        """Return the statement that shows the last one's warnings."""
        return "SHOW WARNINGS" if self.is_tidb else "SHOW WARNINGS LIMIT 10"

    @property
    def has_user_locks(self) -> bool:
        """Return whether GET_LOCK and RELEASE_LOCK mean something.

        In TiDB before 6.2 they did nothing.
        """
        return not self.is_tidb or self.version >= (6, 2, 0)

    @property
    def shared_lock_clause(self) -> str:
        """Return the clause of a SELECT that locks its rows against changes.

        They can't change until the transaction ends; several sessions may hold that at a time. In
        TiDB it locks nothing, so there only one may.
        """
        return "FOR UPDATE" if self.is_tidb else "LOCK IN SHARE MODE"

    @property
    def supports_is_used_lock(self) -> bool:
        """Return whether IS_USED_LOCK shows which session holds a lock."""
        return not self.is_tidb

    def kill(self, connection_id: int) -> str:
        """Return the statement that ends another session.

        TiDB's ids are a server's own before 6.1 (global kill): there it may miss.
        """
        return f"KILL {'TIDB ' if self.is_tidb else ''}CONNECTION {int(connection_id)}"

    # What is there

    @property
    def table_ids(self) -> str:
        """Return a query for (schema/name, id) of tables that shows which is which after a swap.

        ``{prefixes}`` stands for a condition on the column NAME, ``schema/table``.
        """
        if self.is_tidb:
            return (
                "SELECT NAME, TIDB_TABLE_ID FROM (SELECT CONCAT(TABLE_SCHEMA, '/', TABLE_NAME) AS"
                " NAME, TIDB_TABLE_ID FROM information_schema.TABLES) ids WHERE {prefixes} ORDER"
                " BY 1"
            )
        old = self.product == MARIADB_PRODUCT or self.version < (8, 0, 0)
        return (
            "SELECT NAME, TABLE_ID FROM"
            f" information_schema.{'INNODB_SYS_TABLES' if old else 'INNODB_TABLES'} WHERE"
            " {prefixes} ORDER BY 1"
        )

    # DDL

    def collation(self, collation: str) -> str:
        """Return the server's name of a collation of TiDB's, or of `sluice.tidb.old_collations`'.

        The only binary one without padding in MySQL, from 8.0 on, is utf8mb4's.
        """
        if self.product == MARIADB_PRODUCT:
            return _MARIADB_COLLATION.get(collation.lower(), collation)
        if collation.lower() != "utf8mb4_nopad_bin":
            return collation
        return "utf8mb4_bin" if self.is_tidb and self.version < (7, 4, 0) else "utf8mb4_0900_bin"

    @property
    def has_all_names(self) -> bool:
        """Return whether a name may hold characters beyond U+FFFF.

        MariaDB refuses them, MySQL writes ? in their place.
        """
        return self.is_tidb

    @property
    def index_visibility(self) -> tuple[str, str]:
        """Return the words for VISIBLE and INVISIBLE of an index."""
        return (
            ("NOT IGNORED", "IGNORED")
            if self.product == MARIADB_PRODUCT
            else ("VISIBLE", "INVISIBLE")
        )

    @property
    def has_sequences(self) -> bool:
        """Return whether CREATE SEQUENCE is there: in no MySQL."""
        return self.is_tidb or (self.product == MARIADB_PRODUCT and self.version >= (10, 3, 0))

    @property
    def hashes_long_keys(self) -> bool:
        """Return whether a unique index may be longer than a key: MariaDB keeps its hashes.

        A primary key may not.
        """
        return self.product == MARIADB_PRODUCT and self.version >= (10, 4, 0)

    @property
    def generated_primary_keys(self) -> bool:
        """Return whether a primary key may be on a generated column."""
        return self.product != MARIADB_PRODUCT

    @property
    def exchanges_partitions(self) -> bool:
        """Return whether EXCHANGE PARTITION can be relied on.

        MariaDB's never ended when the ordinary table held rows (10.11).
        """
        return self.product != MARIADB_PRODUCT

    @property
    def has_json_type(self) -> bool:
        """Return whether JSON is a type of its own, which no text equals.

        Else it is LONGTEXT under another name.
        """
        return self.product != MARIADB_PRODUCT

    @property
    def running_ddl(self) -> str:
        """Return a query for (state, schema) of DDL, running ones first; else "".

        It is for servers where a statement goes on after its session has ended.
        """
        # The parts of a statement that changed several things stay "done" for ever; the whole
        # becomes "synced".
        query = (
            "SELECT STATE, DB_NAME FROM information_schema.DDL_JOBS WHERE JOB_TYPE NOT LIKE"
            " '%subjob%' LIMIT 50"
        )
        return query if self.is_tidb else ""

    @property
    def indexes_new_columns(self) -> bool:
        """Return whether one ALTER TABLE may add a column and an index on it.

        TiDB sees only columns that were there before.
        """
        return not self.is_tidb


def _identify_product(version: str) -> tuple[str, tuple[int, int, int]]:
    lower = version.lower()
    if "tidb" in lower:
        match, product = _TIDB_VERSION.search(version), TIDB_PRODUCT
        # a build without a number of its own: nothing that came later is relied on
        if match is None:
            return product, (0, 0, 0)
    elif "mariadb" in lower:  # "5.5.5-" in front is for replicas of old
        match, product = _VERSION.match(version.removeprefix("5.5.5-")), MARIADB_PRODUCT
    else:
        match, product = _VERSION.match(version), MYSQL_PRODUCT
    if match is None:
        raise UnknownServerError(f"unknown version {version!r} of MariaDB, MySQL or TiDB")
    major, minor, patch = match.groups()
    return product, (int(major), int(minor), int(patch or 0))
