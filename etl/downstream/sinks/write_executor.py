"""Execute delete and load steps, and check that they did exactly what the changes require."""

from __future__ import annotations

import functools
import itertools
import secrets
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.deletes import counting_selects
from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.changes.steps import DeleteDetail, LoadDetail, RowsDetail, Step
from sluice.etl.display_units import counted
from sluice.etl.downstream import (
    Checkpoint,
    DownstreamError,
    LoadData,
    LoadOutcome,
    MySQLSession,
    StatementOutcome,
    engines_without_transactions,
    tables_with_transactions,
)
from sluice.etl.downstream.ddl import repair_blank_ends
from sluice.etl.downstream.sinks._coalesce import coalesce_small_steps
from sluice.etl.downstream.sinks._keyless_delete import KeylessDelete, statements_of
from sluice.etl.downstream.sinks.sink import ApplyError
from sluice.tidb.folded import folded

_MANY_TABLES = 500
"""Tables looked up one by one before all of a schema are listed: each takes a round trip's work."""
_MAX_SHOWN = 3
_BEFORE_TABLE = "sluice_before"
_UNIQUE_KEYS = (
    "SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND"
    " TABLE_NAME = %s AND NON_UNIQUE = 0 AND INDEX_NAME <> 'PRIMARY' ORDER BY INDEX_NAME"
)


class WriteExecutor:
    """Write through one session, in whatever transaction is open there."""

    def __init__(
        self, session: MySQLSession, afterwards: str = "Nothing of this batch was committed"
    ) -> None:
        """Keep the session; `afterwards`: an error's statement about the rest of the batch."""
        self._session = session
        self._hint = afterwards
        self._checkpoint = Checkpoint(0)

    def follow(self, checkpoint: Checkpoint | None) -> None:
        """Set the checkpoint after which the next writes come."""
        self._checkpoint = checkpoint or Checkpoint(0)

    def write(self, step: Step, *, safe: bool = False) -> None:
        """Execute a delete or load step.

        `safe`: it may have been executed before, so rows may be missing or there already.

        Raises ApplyError when the downstream's rows aren't those that the step expects, and
        DownstreamError when trying again may help.
        """
        detail = step.detail_of(RowsDetail)
        if detail.absent:
            if safe and step.full_name not in self._checkpoint.copied:
                self._check_absent(step)
            return
        safe = self._is_safe(step, safe=safe)
        self._check_engines([step])
        if step.kind == "delete":
            self._delete(step, safe=safe)
        else:
            self._load(step, safe=safe)

    def write_all(self, steps: Sequence[Step], *, safe: bool = False) -> None:
        """Write each step.

        Small ones are sent before those in front of them are answered: hundreds of tables with a
        few rows each would be as many round trips, and more.
        """
        for together in coalesce_small_steps(steps):
            if len(together) > 1 and self._session.is_pipelining:
                self._write_ahead(together, safe=safe)
                continue
            for step in together:
                self.write(step, safe=safe)

    def _write_ahead(self, steps: Sequence[Step], *, safe: bool) -> None:
        mark, *answers = self._session.execute_pipelined(
            [f"SAVEPOINT {_BEFORE_TABLE}".encode(), *self.orders(steps, safe=safe)]
        )
        if isinstance(mark, DownstreamError) and mark.transient:
            raise mark
        if self.did(steps, answers, safe=safe):
            return
        # One by one, the one that is refused raises its usual error.
        self._session.query(f"ROLLBACK TO SAVEPOINT {_BEFORE_TABLE}")
        for step in steps:
            self.write(step, safe=safe)

    def orders(self, steps: Sequence[Step], *, safe: bool) -> list[bytes | LoadData]:
        """Return what is to be pipelined for steps that are small together, in order.

        Raises DownstreamError.
        """
        self._check_engines(steps)
        return [self._to_statement(step, safe=safe) for step in steps]

    def did(
        self, steps: Sequence[Step], answers: Sequence[StatementOutcome], *, safe: bool
    ) -> bool:
        """Return whether each of the orders did what its step requires.

        Raises DownstreamError for one behind which the server may have rolled back what came
        before, or that may do when it is tried again.
        """
        for answer in answers:
            if isinstance(answer, DownstreamError) and answer.transient:
                raise answer
        return all(
            self._is_as_expected(step, answer, safe=self._is_safe(step, safe=safe))
            for step, answer in zip(steps, answers, strict=True)
        )

    def _to_statement(self, step: Step, *, safe: bool) -> bytes | LoadData:
        if step.kind == "delete":
            return bytes(step.payload)
        detail = step.detail_of(LoadDetail)
        may_replace = bool(detail.replaces) or self._is_safe(step, safe=safe)
        return LoadData(_target(step), detail.layout, step.payload, may_replace)

    def _is_safe(self, step: Step, *, safe: bool) -> bool:
        """Return whether rows may be missing or there already."""
        return step.detail_of(RowsDetail).safe or (
            safe and step.full_name not in self._checkpoint.copied
        )

    def _is_as_expected(self, step: Step, done: StatementOutcome, *, safe: bool) -> bool:
        if isinstance(done, int):
            return safe or done == step.rows
        if not isinstance(done, LoadOutcome):
            return False
        detail = step.detail_of(LoadDetail)
        if done.warnings != detail.warnings:
            return False
        if safe:
            return True
        if done.records < 0:  # the server reports only the sum
            return done.deleted == step.rows + detail.replaces and not done.skipped
        return (done.records, done.deleted, done.skipped) == (step.rows, detail.replaces, 0)

    def _check_engines(self, steps: Sequence[Step]) -> None:
        """Check that the tables' engines have transactions: others keep what is rolled back.

        Each table is looked up once in a session.
        """
        new = {
            step.full_name: step
            for step in steps
            if step.full_name not in self._session.known_tables
        }
        if not new:
            return
        self._list_tables({step.schema for step in new.values()})
        for name, step in list(new.items()):
            if (
                step.table in self._session.listed_tables.get(step.schema, ())
                and not step.detail_of(RowsDetail).keeps_deleted
            ):
                self._session.known_tables.add(name)
                del new[name]
        engines = engines_without_transactions(
            self._session, [(step.schema, step.table) for step in new.values()]
        )
        for name, engine in zip(new, engines, strict=True):
            if engine:
                raise DownstreamError(
                    server_errors.UNFIT,
                    f"table {name} on {self._session.address} is in the storage engine {engine},"
                    " which has no transactions: after a crash changes would be lost or doubled."
                    " Nothing was written to it.",
                    "ALTER TABLE ... ENGINE = InnoDB there",
                )
            if new[name].detail_of(RowsDetail).keeps_deleted:
                self._check_unique_keys(new[name])
            self._session.known_tables.add(name)

    def _list_tables(self, schemas: Iterable[str]) -> None:
        """List a schema's tables, once in a session, as soon as many of them were looked up."""
        if len(self._session.known_tables) < _MANY_TABLES:
            return
        for schema in schemas:
            if schema not in self._session.listed_tables:
                self._session.listed_tables[schema] = tables_with_transactions(
                    self._session, schema
                )

    def _check_unique_keys(self, step: Step) -> None:
        """Check that no unique key would have a row take the place of one marked as deleted."""
        found = self._session.query(_UNIQUE_KEYS, (step.schema, step.table))
        if found:
            name = str(found[0][0])
            raise DownstreamError(
                server_errors.UNFIT,
                f"table {step.full_name} on {self._session.address} has the unique key {name}, and"
                " [[filter.columns]] soft-delete or history has rows that are gone keep their"
                " values: living ones would remove them. Nothing was written to it.",
                f"make it an ordinary index: ALTER TABLE {step.full_name} DROP INDEX"
                f" {quote_name(name)}; ALTER TABLE {step.full_name} ADD INDEX {quote_name(name)}"
                " (...)",
            )

    def _delete(self, step: Step, *, safe: bool) -> None:
        listed = step.detail_of(DeleteDetail).listed
        try:
            if listed is None:
                affected: int | None = self._session.execute(bytes(step.payload))
            else:
                affected = KeylessDelete(self._session, step, listed).execute()
        except DownstreamError as error:
            raise self._refused(step, error) from error
        if affected is None:
            raise self._mismatch(
                step, "rows came or went while those to be removed were counted", ""
            )
        if not self._is_as_expected(step, affected, safe=safe):
            what, end = (
                ("open version", "to end") if _ends_versions(step) else ("row", "to be removed")
            )
            raise self._mismatch(
                step,
                f"{affected:,} of {counted(step.rows, what)} {end}"
                f" {'was' if affected == 1 else 'were'} there",
                self._missing(step),
            )

    def _load(self, step: Step, *, safe: bool) -> None:
        detail = step.detail_of(LoadDetail)
        replaces, warnings = detail.replaces, detail.warnings
        try:
            outcome = self._session.load(
                _target(step), self._layout(step), step.payload, strict=not warnings
            )
            if outcome.warnings != warnings:
                texts = "; ".join(
                    f"{message} ({code})" for _, code, message in self._session.warnings()
                )
                raise self._mismatch(step, f"{counted(outcome.warnings, 'warning')}: {texts}", "")
        except DownstreamError as error:
            raise self._refused(step, error) from error
        if not self._is_as_expected(step, outcome, safe=safe):
            found = (
                f"{counted(outcome.deleted, 'row')} replaced, {replaces:,} expected;"
                f" {outcome.skipped:,} skipped"
            )
            raise self._mismatch(step, found, self._unexpected(step, replaces=bool(replaces)))

    def _layout(self, step: Step) -> LoadLayout:
        """Return the step's layout without the columns that the server computes.

        Raises ApplyError where it may compute something else.
        """
        layout = step.detail_of(LoadDetail).layout
        if repair := repair_blank_ends(self._session, step.schema, step.table, layout.blank_ends):
            raise self._unfit(
                step,
                f"{self._session.address} has cut off the blanks that elements of its ENUM or SET"
                " columns end with",
                f"Let the columns have them: {repair}; then let the task go on",
            )
        if not layout.generated:
            return layout
        rows = self._session.query(
            "SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA ="
            " %s AND TABLE_NAME = %s AND COALESCE(GENERATION_EXPRESSION, '') <> ''",
            (step.schema, step.table),
        )
        computed = {folded(str(name)): str(kind) for name, kind in rows}
        unsure = [name for name in layout.unsure if folded(name) in computed]
        if unsure:
            what = (
                f"{self._session.address} computes {', '.join(unsure)} by itself, and may come to"
                " other values than the upstream"
            )
            changes = ", ".join(
                f"MODIFY COLUMN {quote_name(name)} {computed[folded(name)]}" for name in unsure
            )
            hint = (
                f"Make them plain columns with the upstream's values: ALTER TABLE {_target(step)}"
                f" {changes}; then compare the rows that are there with the upstream's, and let the"
                " task go on"
            )
            raise self._unfit(step, what, hint)
        return replace(
            layout, left_out=tuple(name for name in layout.generated if folded(name) in computed)
        )

    def _unfit(self, step: Step, what: str, hint: str) -> ApplyError:
        return ApplyError(
            f"table {step.full_name}, rows changed between commit_ts"
            f" {step.detail_of(RowsDetail).first_ts} and {step.commit_ts}: {what}. {self._hint}."
            f" {hint}",
            f"{what}. {hint}",
            hint,
        )

    def _check_absent(self, step: Step) -> None:
        """Check a table without a key whose changes may be there already.

        If a row to be written or removed is there, it may be the one or its twin.
        """
        try:
            there = (
                self._check_deleted(step)
                if step.kind == "delete"
                else self._check_absent_rows(step)
            )
        except DownstreamError as error:
            raise self._refused(step, error) from error
        if there:
            state, reason = (
                (
                    "removed",
                    (
                        "still: a Drainer did not remove them before it broke off, or these are"
                        " others that look the same"
                    ),
                )
                if step.kind == "delete"
                else (
                    "written",
                    "already: a Drainer wrote them before it broke off, or others look the same",
                )
            )
            first_ts = step.detail_of(RowsDetail).first_ts
            raise ApplyError(
                f"table {step.full_name} has no key, and {there} of its rows {state} between"
                f" commit_ts {first_ts} and {step.commit_ts} are on {self._session.address}"
                f" {reason}; which ones is unknown. Nothing of this batch was committed."
                f" {self._fallback_hint(step, _target(step), self._columns(step))}"
            )

    def _make_check(self, step: Step, target: str, check: str) -> None:
        """Create an empty temporary table for the step's rows, without keys.

        Of rows that followed one another in a place that a unique key keeps for one, all are
        looked for.
        """
        names = ", ".join(map(quote_name, self._layout(step).written))
        self._session.execute(
            f"CREATE TEMPORARY TABLE {check} AS SELECT {names} FROM {target} LIMIT 0"
        )

    def _fallback_hint(self, step: Step, target: str, names: list[str]) -> str:
        columns, at = ", ".join(names), self._checkpoint.commit_ts
        return (
            "Ways out: start the Drainer again and stop it with `sluice drainers pause`, if it"
            " gets to its end; or make the table what it was upstream at the checkpoint. What it"
            f" was: SET @@tidb_snapshot = '{at}'; SELECT {columns}, COUNT(*) FROM <upstream's"
            f" table> GROUP BY {columns}; what it is here: SELECT {columns}, COUNT(*) FROM {target}"
            f" GROUP BY {columns}; where the two differ: DELETE FROM {target}, and load all of the"
            f" table as of that snapshot (dumpling --snapshot {at} --tables-list); then `sluice"
            f" takeover --copied {shlex.quote(step.full_name)}`"
        )

    def _check_deleted(self, step: Step) -> int:
        return sum(
            int(self._session.query(count)[0][0])
            for each in statements_of(step)
            for _, count in counting_selects(each)
        )

    def _check_absent_rows(self, step: Step) -> int:
        target, check = _target(step), _temporary_name(step)
        names = self._load_merged(step, target, check)
        same = " AND ".join(f"n.{name} <=> o.{name}" for name in names)
        query = (
            f"SELECT COUNT(*) FROM {check} n WHERE EXISTS (SELECT 1 FROM {target} o WHERE {same})"
        )
        there = int(self._session.query(query)[0][0])
        self._session.execute(f"DROP TEMPORARY TABLE {check}")
        return there

    def _load_merged(self, step: Step, target: str, check: str) -> list[str]:
        """Load a step's rows into a temporary table `check`; the names of its columns, quoted."""
        self._make_check(step, target, check)
        self._session.load(
            check, self._layout(step), step.payload, strict=not step.detail_of(LoadDetail).warnings
        )
        return [
            quote_name(str(row[0])) for row in self._session.query(f"SHOW COLUMNS FROM {check}")
        ]

    def _columns(self, step: Step) -> list[str]:
        found = self._session.query(
            "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND"
            " TABLE_NAME = %s AND COALESCE(GENERATION_EXPRESSION, '') = '' ORDER BY"
            " ORDINAL_POSITION",
            (step.schema, step.table),
        )
        return [quote_name(str(name)) for (name,) in found]

    def _refused(self, step: Step, error: DownstreamError) -> Exception:
        if error.transient:
            return error
        return self._mismatch(step, str(error), "")

    def _mismatch(self, step: Step, found: str, keys: str) -> ApplyError:
        if source := step.detail_of(RowsDetail).source:
            keys += (
                f"{'; ' if keys else ''}{step.full_name} merges {source} with other tables: has one"
                " of them the same key?"
            )
        return ApplyError(
            f"table {step.full_name}, {step.kind} of {counted(step.rows, 'row')} changed between"
            f" commit_ts {step.detail_of(RowsDetail).first_ts} and {step.commit_ts}:"
            f" {found}{f' ({keys})' if keys else ''}. {self._hint}. Another program wrote to"
            f" {self._session.address}, or it did not begin as a copy of the upstream at its"
            " checkpoint.",
            f"{found}{f' ({keys})' if keys else ''}",
            "repair these rows there, or copy the table again, then start again. `sluice relay"
            f" show {step.commit_ts} --rows --table {shlex.quote(step.full_name)}` shows the"
            " changes, `sluice txn skip COMMIT_TS` leaves one transaction out",
        )

    def _missing(self, step: Step) -> str:
        """Return the keys of a DELETE that aren't there, for the error message; never fails."""
        try:
            self._session.rollback()
            missing = []
            for term, count in itertools.chain.from_iterable(
                map(counting_selects, statements_of(step))
            ):
                if int(self._session.query(count)[0][0]) == 0:
                    missing.append(term.decode("utf-8", "replace")[:300])
                    if len(missing) == _MAX_SHOWN:
                        break
            return "missing: " + "; ".join(missing) if missing else ""
        except DownstreamError as error:
            return f"which ones is unknown: {error}"

    def _unexpected(self, step: Step, *, replaces: bool) -> str:
        """Return which rows of a LOAD were there though they should not be, or the other way round.

        Never fails.
        """
        target, check = _target(step), _temporary_name(step)
        keys = [quote_name(key) for key in step.detail_of(LoadDetail).keys]
        if not keys:
            return ""
        try:
            self._session.rollback()
            self._load_merged(step, target, check)
            columns, same = (
                ", ".join(f"n.{key}" for key in keys),
                " AND ".join(f"n.{key} = o.{key}" for key in keys),
            )
            join = (
                f"LEFT JOIN {target} o ON {same} WHERE o.{keys[0]} IS NULL"
                if replaces
                else f"JOIN {target} o ON {same}"
            )
            rows = self._session.query(f"SELECT {columns} FROM {check} n {join} LIMIT {_MAX_SHOWN}")
            self._session.execute(f"DROP TEMPORARY TABLE {check}")
        except DownstreamError as error:
            return f"which ones is unknown: {error}"
        what = "missing" if replaces else "there already"
        return f"{what}: {'; '.join(str(row) for row in rows)}" if rows else ""


def _ends_versions(step: Step) -> bool:
    return bytes(step.payload[:6]) == b"UPDATE"


def _target(step: Step) -> str:
    return _quoted(step.schema, step.table)


def _temporary_name(step: Step) -> str:
    """Return the name of a temporary table to be made beside it."""
    return _quoted(step.schema, "sluice_check_" + secrets.token_hex(4))


@functools.lru_cache(maxsize=4096)
def _quoted(schema: str, table: str) -> str:
    return f"{quote_name(schema)}.{quote_name(table)}"
