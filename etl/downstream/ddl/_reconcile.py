"""Make columns, collations and existing rows' values right after a DDL, whatever it did.

Everything here may be repeated after a crash, as long as no later change has been applied.
"""

from __future__ import annotations

from sluice.errors import SluiceError
from sluice.etl.changes.formats.ddl_columns import pair_columns
from sluice.etl.changes.formats.ddl_text import blank_ended_columns
from sluice.etl.changes.formats.sql_columns import literal_column
from sluice.etl.changes.formats.sql_text import quote_name, quote_table
from sluice.etl.changes.formats.table_fallbacks import as_stored_downstream, is_longer
from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.ddl._generate import column_definition, table_options
from sluice.etl.downstream.ddl._state import actual_columns, moving_columns, wrong_collations
from sluice.etl.downstream.ddl._table_adjustments import repair_blank_ends
from sluice.tidb.codec.column_value import missing_value
from sluice.tidb.codec.columnar import arrow_type, constant
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table

# What a server fills in for existing rows may differ for these: its clock, its time zone, how it
# reads a year of 0, its idea of an empty document.
_CHECKED_KINDS = {"timestamp", "datetime", "date", "time", "year", "json"}


class CannotReconcile(SluiceError):
    """The downstream table can't be brought to what the upstream has; names table and columns."""

    hint = "bring the downstream's table to what the upstream has, then let the task go on"


def reconcile(session: MySQLSession, ddl: DdlJob, *, values: bool = True) -> list[str]:
    """Check and repair the tables a DDL job leaves behind; warnings.

    `values`: also those of existing rows, which must not be when later changes are there. Raises
    CannotReconcile, DownstreamError.
    """
    warnings: list[str] = []
    before = {table.id: old for old, table in ddl.table_pairs()}
    for table_id, table in ddl.effect.tables.items():
        if table is not None and table.is_base_table:
            warnings += _reconcile_table(session, before.get(table_id), table, ddl, values=values)
    return warnings


def _reconcile_table(
    session: MySQLSession, old: Table | None, table: Table, ddl: DdlJob, *, values: bool
) -> list[str]:
    warnings = []
    actual = actual_columns(session, table)
    names = {folded(column.name) for column in actual}
    missing = [c.name for c in table.writable_columns if folded(c.name) not in names]
    if missing:
        raise CannotReconcile(f"{table.full_name} lacks {', '.join(missing)} downstream afterwards")
    kept = {folded(c.name) for c in table.columns if c.public}
    gone = (
        [
            c.name
            for c in old.columns
            if c.public and not c.hidden and folded(c.name) in names - kept
        ]
        if old
        else []
    )
    if gone:
        session.execute(
            f"ALTER TABLE {quote_table(table)}"
            f" {', '.join(f'DROP COLUMN {quote_name(name)}' for name in gone)}"
        )
        warnings.append(f"{table.full_name}: {', '.join(gone)} dropped apart")
    if repair := repair_blank_ends(
        session, table.schema_name, table.name, blank_ended_columns(table)
    ):
        raise CannotReconcile(
            f"{table.full_name}: the server has cut off the blanks that elements of its ENUM or SET"
            " columns end with",
            hint=f"let the columns have them: {repair}; then let the task go on",
        )
    dialect = session.dialect
    wrong = wrong_collations(table, actual, dialect)
    if wrong:
        held = {folded(column.name): column for column in actual}
        found = [(c, held[folded(c.name)]) for c in table.columns if c.name in wrong]
        stored = (as_stored_downstream(c, a.data_type, generated=a.generated) for c, a in found)
        changes = ", ".join(f"MODIFY COLUMN {column_definition(c, dialect)}" for c in stored)
        session.execute(
            f"ALTER TABLE {quote_table(table)} {changes}, {table_options(table, dialect)}"
        )
        warnings.append(f"{table.full_name}: collation of {', '.join(wrong)} set to the upstream's")
    if old is not None and values:
        kinds = {folded(column.name): column.data_type for column in actual}
        checked = _CHECKED_KINDS - (
            {"json"} if dialect.has_json_type else set()
        )  # there nothing but 'null' is filled in, as upstream
        added = [
            c
            for c in _columns_added(old, table, ddl)
            if c.kind in checked or c.default_expression or is_longer(c, kinds[folded(c.name)])
        ]
        if added:
            _refuse_unknown_zone(session, table, added)
            _fill_columns(session, table, added)
    return warnings


def _columns_added(old: Table, table: Table, ddl: DdlJob) -> list[Column]:
    """Return columns that existing rows have been given a value for."""
    known = pair_columns(old, table, ddl)
    return [column for column in table.writable_columns if column.id not in known]


def _refuse_unknown_zone(session: MySQLSession, table: Table, columns: list[Column]) -> None:
    """Raise CannotReconcile for a new TIMESTAMP whose rows' value is in an unknown time zone.

    TiDB before 2.1 kept that value by its server's clock (the column's version is 0), since then
    in UTC.
    """
    zero = (None, "", "0", "0000-00-00 00:00:00")
    doubtful = [
        c
        for c in columns
        if c.kind == "timestamp" and c.version == 0 and c.origin_default not in zero
    ]
    if doubtful and session.query(f"SELECT 1 FROM {quote_table(table)} LIMIT 1"):
        one = doubtful[0]
        raise CannotReconcile(
            f"{table.full_name}.{one.name}: the upstream's existing rows have"
            f" {one.origin_default!r} by the clock of the TiDB server that added the column, and"
            " its time zone isn't known",
            hint="give the rows the upstream's value downstream by hand, then `sluice ddl skip`",
        )


def _fill_columns(session: MySQLSession, table: Table, columns: list[Column]) -> None:
    """Give existing rows the values that TiDB reads where a row is older than the column."""
    values = {
        quote_name(c.name).encode(): (
            literal_column(constant(missing_value(c), arrow_type(c), 1), c)[0].as_py()
        )
        for c in columns
    }
    still = [
        name.encode() for name in moving_columns(session, table) if name.encode() not in values
    ]
    changes = [b"%b = %b" % pair for pair in values.items()] + [
        b"%b = %b" % (name, name) for name in still
    ]
    as_wanted = b" AND ".join(b"%b <=> %b" % pair for pair in values.items())
    session.execute(
        b"UPDATE %b SET %b WHERE NOT (%b)"
        % (quote_table(table).encode(), b", ".join(changes), as_wanted)
    )
