"""Show past transactions as the page does: their state, and the SQL that takes them back."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from typing import Any

from sluice.errors import RequestError
from sluice.etl import operate
from sluice.etl.history import undo
from sluice.etl.history.errors import EmptyHistoryError, FindError
from sluice.etl.history.find import (
    FoundDdl,
    FoundTransaction,
    Incident,
    RecentPage,
    SearchQuery,
    SkippedWindow,
    check_table_globs,
    find_incidents,
    load_transaction,
    recent_activity,
    recent_page,
)
from sluice.etl.operate.overview import known_checkpoint
from sluice.etl.settings import Settings
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.pages.table_list import history_log_of

__all__ = [
    "TransactionKey",
    "found_document",
    "incidents_document",
    "state_document",
    "transaction_document",
    "undo_document",
    "undo_range_document",
]

TransactionKey = tuple[int, int]
"""commit_ts and start_ts; 0 for the second where nothing else shares the first."""

_CHECKPOINT_TIMEOUT_S, _CONNECT_TIMEOUT_S = 0.5, 3
_MAX_UNDO_ROWS = 20_000
_MAX_SORTED = 10_000
"""Transactions of which a step of a search by size returns the largest."""
_MAX_SQL_BYTES = 1 << 17
_MAX_PREVIEW_ROWS = 5


class TooLargeError(RequestError):
    """The transaction has more rows than a page can show or check."""


def found_document(pipeline: NamedPipeline, query: SearchQuery, *, keys: bool) -> dict[str, Any]:
    """Return the transactions found, newest first; `last`: the TSO that the history reaches now.

    `keys`: with the rows' keys.
    """
    try:
        past = history_log_of(pipeline)
    except EmptyHistoryError:
        return _found(RecentPage(0, complete=True), 0)
    if query.since >= min(query.until, past.last):
        nothing = RecentPage(query.since, complete=True)
        return _found(nothing, past.last)
    found = recent_page(past, replace(query, limit=_MAX_SORTED) if query.order == "size" else query)
    if query.order == "size":
        found.found = sorted(found.found, key=_rows, reverse=True)[: query.limit]
    if not keys:
        found.found = [_without_keys(one) for one in found.found]
    if found.complete and not (found.found or found.groups or found.large or found.problem):
        try:
            check_table_globs(past, query.tables)
        except FindError as error:
            found.unknown_table = str(error.args[0])
    return _found(found, past.last)


def incidents_document(pipeline: NamedPipeline, query: SearchQuery) -> dict[str, Any]:
    """Return what stands out among the row changes, and what was looked through for it.

    Raises ConditionError, FindError, relay errors.
    """
    nothing = {"incidents": [], "rows": 0, "large": [], "problem": "", "hint": ""}
    try:
        past = history_log_of(pipeline)
    except EmptyHistoryError:
        return nothing | {"through": "0", "last": "0", "complete": True}
    if query.since >= min(query.until, past.last):
        return nothing | {"through": str(query.since), "last": str(past.last), "complete": True}
    found = recent_activity(past, query)
    if found.complete and not found.series:
        check_table_globs(past, query.tables)
    return {
        "incidents": [_incident(one) for one in find_incidents(found)],
        "rows": sum(cell.rows for series in found.series.values() for cell in series.values()),
        "large": [_large(one) for one in found.large],
        "problem": found.problem,
        "hint": found.hint,
        "through": str(found.through),
        "last": str(found.last),
        "complete": found.complete,
    }


def _incident(one: Incident) -> dict[str, Any]:
    return asdict(one) | {"rows": one.rows}


def _rows(one: FoundTransaction | FoundDdl) -> int:
    return one.rows if isinstance(one, FoundTransaction) else 0


def _without_keys(one: FoundTransaction | FoundDdl) -> FoundTransaction | FoundDdl:
    if isinstance(one, FoundDdl):
        return one
    return replace(one, tables=tuple(replace(rows, keys=()) for rows in one.tables))


def _found(found: RecentPage, last: int) -> dict[str, Any]:
    times = Counter(one.commit_ts for one in found.found)  # a page has all of a timestamp, or none
    return {
        "found": [_entry(one, is_shared=times[one.commit_ts] > 1) for one in found.found],
        "groups": [asdict(one) for one in found.groups],
        "large": [_large(one) for one in found.large],
        "through": str(found.through),
        "complete": found.complete,
        "windows": found.windows,
        "unknown": found.unknown,
        "unknown_table": found.unknown_table,
        "problem": found.problem,
        "hint": found.hint,
        "last": str(last),
    }


def _entry(one: FoundTransaction | FoundDdl, *, is_shared: bool) -> dict[str, Any]:
    kind = {"ddl": one.kind} if isinstance(one, FoundDdl) else {}
    at = place_of(one.commit_ts, one.start_ts if is_shared else 0)
    return (
        asdict(one)
        | kind
        | {"commit_ts": str(one.commit_ts), "start_ts": str(one.start_ts), "at": at}
    )


def place_of(commit_ts: int, start_ts: int) -> str:
    """Return a transaction's name in addresses; `start_ts` is 0 unless its commit_ts is shared."""
    return f"{commit_ts}-{start_ts}" if start_ts else str(commit_ts)


def _large(one: SkippedWindow) -> dict[str, Any]:
    return asdict(one) | {"lo": str(one.lo), "hi": str(one.hi)}


def transaction_document(
    pipeline: NamedPipeline, at: TransactionKey, table: str, offset: int
) -> dict[str, Any]:
    """Return the transaction committed at a TSO, and some of its rows.

    Raises NoTransactionError, relay errors.
    """
    commit_ts, start_ts = at
    view = load_transaction(history_log_of(pipeline), commit_ts, table, offset, start_ts=start_ts)
    return asdict(view) | {
        "commit_ts": str(commit_ts),
        "start_ts": str(view.start_ts),
        "at": place_of(commit_ts, view.start_ts if view.others else 0),
        "others": [place_of(commit_ts, other) for other in view.others],
        "window": [str(ts) for ts in view.window],
        "offset": offset,
    }


def state_document(pipeline: NamedPipeline, key: TransactionKey) -> dict[str, Any]:
    """Return whether it is applied, what was decided about it, and what can be done.

    A downstream that doesn't answer is named.
    """
    settings, (commit_ts, start_ts) = pipeline.settings, key
    decided = next(
        (
            one
            for one in operate.list_overrides(settings)
            if one["commit_ts"] == commit_ts and one.get("start_ts", 0) in (0, start_ts)
        ),
        None,
    )
    known = known_checkpoint(settings, _CHECKPOINT_TIMEOUT_S)
    at = known.at_ts
    applied = None if at is None or (known.problem and at < commit_ts) else at >= commit_ts
    problem = "" if applied else known.problem
    refused = None if applied or decided else _refusal(settings, key)
    return {
        "override": decided,
        "applied": applied,
        "checkpoint": str(at) if at else None,
        "problem": problem,
        "refused": refused,
    }


def _refusal(settings: Settings, key: TransactionKey) -> dict[str, str] | None:
    """Return why applying has stopped at this transaction, and what to type; None if it hasn't."""
    commit_ts, start_ts = key
    for failure in operate.failures(settings.open_relay()):
        if failure.what == operate.APPLY and str(commit_ts) in f"{failure.message} {failure.hint}":
            started = f" --start-ts {start_ts}" if start_ts else ""
            return {
                "text": failure.message,
                "hint": failure.hint,
                "command": f"sluice txn skip {commit_ts}{started}",
            }
    return None


def undo_document(pipeline: NamedPipeline, at: TransactionKey) -> dict[str, Any]:
    """Return the SQL that takes a transaction back, and what prevents it in the replica now.

    Nothing is written. Raises UndoError, TooLargeError, relay errors.
    """
    settings, past, (commit_ts, start_ts) = pipeline.settings, history_log_of(pipeline), at
    view = load_transaction(past, commit_ts, start_ts=start_ts)
    rows = sum(each.inserts + each.updates + each.deletes for each in view.tables)
    if rows > _MAX_UNDO_ROWS or not view.complete:
        raise TooLargeError(
            f"the transaction has {rows:,} row changes{'' if view.complete else ' and more'}: too"
            " many for a page",
            hint=(
                f"`sluice undo {commit_ts}` writes the SQL, with --dry-run it looks at the replica"
            ),
        )
    transaction = undo.read_transaction(past, commit_ts, start_ts=start_ts)
    return _undo(settings, transaction)


def undo_range_document(pipeline: NamedPipeline, query: SearchQuery) -> dict[str, Any]:
    """Return what would take the row changes of a range back, and what prevents it.

    Nothing is written. Raises UndoError, TooLargeError, ConditionError, relay errors.
    """
    past = history_log_of(pipeline)
    wanted = replace(query, since=max(query.since, past.first), until=min(query.until, past.last))
    check_table_globs(past, query.tables)
    try:
        changes = undo.read_range(past, wanted, _MAX_UNDO_ROWS)
    except undo.TooManyChangesError:
        raise TooLargeError(
            f"the range has more than {_MAX_UNDO_ROWS:,} row changes: too many for a page",
            hint="run the commands of this page: they take up to a million",
        ) from None
    return _undo(pipeline.settings, changes) | {
        "transactions": changes.transactions,
        "others": changes.others,
        "partial": changes.partial,
        "first_ts": str(changes.first_ts),
        "last_ts": str(changes.last_ts),
    }


def _undo(settings: Settings, changes: undo.PastChanges) -> dict[str, Any]:
    reverses = [undo.invert_changes(table) for table in changes.tables]
    lines = undo.script(changes, undo.for_upstream(reverses))
    text = b"\n".join(lines).decode("utf-8", "backslashreplace") + "\n"
    document: dict[str, Any] = {
        "preview": [
            asdict(row) for each in reverses for row in undo.preview(each, _MAX_PREVIEW_ROWS)
        ],
        "sql": text[:_MAX_SQL_BYTES],
        "cut": len(text) > _MAX_SQL_BYTES,
        "dry_run": None,
        "problem": "",
        "notes": changes.notes,
    }
    try:
        done = undo.dry_run(_with_short_timeouts(settings), changes, reverses)
    except Exception as error:
        return document | {"problem": str(error)}
    return document | {"dry_run": asdict(done) | {"checkpoint": str(done.checkpoint)}}


def _with_short_timeouts(settings: Settings) -> Settings:
    """Shorten the connect timeout to seconds: a person is waiting for the page."""
    connect_s = min(_CONNECT_TIMEOUT_S, settings.downstream.connect_timeout_s)
    return replace(settings, downstream=replace(settings.downstream, connect_timeout_s=connect_s))
