"""Find the one transaction, and the row in it, for which a batch can't be applied.

A batch holds the net effect of many transactions, so its error names a range of commit timestamps.
The search tries the batch with ever fewer row changes, each time in a downstream transaction that
is rolled back, until it has found the first change that fails.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.errors import Signal
from sluice.etl.apply._batch import WindowBatch
from sluice.etl.changes import server_errors
from sluice.etl.changes.planning import (
    BatchPayload,
    InFlightPayload,
    PrepareOptions,
    SharedPayload,
    prepare_steps,
)
from sluice.etl.changes.recorded_schema import SchemaTimeline
from sluice.etl.changes.row_change import RowChange, decode
from sluice.etl.downstream import Checkpoint, CheckpointTable, DownstreamError, MySQLSession
from sluice.etl.downstream.sinks import ApplyError
from sluice.etl.downstream.sinks.write_executor import WriteExecutor
from sluice.etl.settings import Downstream
from sluice.etl.spark.errors import WorkerError
from sluice.relay import PART_SCHEMA, RelayError, RelayLog, WindowRecord
from sluice.tidb.table_name import argument
from sluice.tidb.tso import to_datetime

log = logging.getLogger("sluice.apply")

_SEARCH_TIMEOUT_S = 60.0
_ABSENT = {server_errors.NO_SUCH_TABLE, server_errors.UNKNOWN_DATABASE}


@dataclass(frozen=True, slots=True)
class _Position:
    """The first `rows` changes of the window number `window`, and all of the windows before."""

    window: int
    rows: int


class _SearchAborted(Signal):
    """The search takes too long, or another process writes downstream."""


def find_failing_transaction(
    error: BaseException,
    batch: WindowBatch,
    relay: RelayLog,
    options: PrepareOptions,
    downstream: Downstream,
) -> None:
    """Raise an ApplyError that names the transaction of `batch` which causes `error`.

    It has table, key, commit_ts and a hint. Returns if no single transaction is found. Writes
    nothing. The sink's own session must be closed, for its locks.
    """
    refused = isinstance(error, ApplyError)
    if not isinstance(error, ApplyError | WorkerError | ValueError) or (
        refused and downstream.type != "mysql"
    ):
        return
    search = _Bisection(batch, relay, options, downstream if refused else None)
    try:
        found = search.run()
    except (_SearchAborted, DownstreamError, RelayError, OSError) as trouble:
        log.warning("the failing transaction was not found: %s", trouble)
        return
    finally:
        search.close()
    if found is not None:
        change, fault = found
        named = ApplyError(
            _failure_text(change, fault, search.address),
            hint=_absent_hint(change, fault) or _skip_hint(change.commit_ts, search.address),
        )
        named.commit_ts = change.commit_ts
        raise named from error


def _failure_text(change: RowChange, fault: BaseException, address: str) -> str:
    key = _key_values(change.key) or "unknown"
    if change.others:
        key += f" (unique too: {_key_values(change.others)})"
    reason = change.fault or getattr(fault, "found", "") or str(fault)
    where = f" {address} rejects it" if address else " it can't be decoded or reduced"
    return (
        f"table {change.table}, key {key}, {change.kind} at commit_ts {change.commit_ts}"
        f" ({to_datetime(change.commit_ts):%Y-%m-%d %H:%M:%S} UTC, start_ts"
        f" {change.start_ts}):{where}: {reason[:2000]}. Nothing of this transaction is downstream,"
        " all before it can be applied."
    )


def _absent_hint(change: RowChange, fault: BaseException) -> str:
    """Return the command that brings the change's table, "" if it is there downstream."""
    faults = (fault, fault.__cause__)
    if not any(getattr(each, "code", 0) in _ABSENT for each in faults):
        return ""
    return (
        f"the table isn't downstream: `sluice backfill --table {argument(change.table)}` copies it"
        " with its rows. If nothing was copied yet, begin with `sluice bootstrap --from tidb://`"
    )


def _skip_hint(commit_ts: int, address: str) -> str:
    return (
        f"repair {f'the rows on {address}' if address else 'what is wrong'} and let the task go on;"
        f" or leave the whole transaction out: `sluice txn skip {commit_ts}` (what is in it:"
        f" `sluice relay show {commit_ts} --rows`)"
    )


def _key_values(key: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={repr(value)[:100]}" for name, value in key.items())


class _Bisection:
    def __init__(
        self,
        batch: WindowBatch,
        relay: RelayLog,
        options: PrepareOptions,
        downstream: Downstream | None,
    ) -> None:
        """Try the changes in the database `downstream`, or only prepare them if it is None."""
        self._relay = relay
        self._options = replace(options, write_plan="net", workers=1)
        self._batch = batch
        self._overrides = relay.overrides.list(batch.after_ts, batch.hi)
        self._windows: list[WindowRecord] = []
        self._changes: list[pa.Table] = []
        self._until = time.monotonic() + _SEARCH_TIMEOUT_S
        self._downstream = downstream
        self._session = MySQLSession(downstream) if downstream is not None else None
        self._after = batch.after_ts
        self._checkpoint: Checkpoint | None = None
        self._safe = False
        self._in_flight: InFlightPayload | None = None
        self._begun: SharedPayload | None = None

    @property
    def address(self) -> str:
        """Return the downstream's address, "" without one."""
        return self._session.address if self._session else ""

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def run(self) -> tuple[RowChange, BaseException] | None:
        """Return the first change that fails, and its error."""
        self._begin()
        places = list(self._positions())
        fault = self._try(places[-1]) if places else None
        if fault is None:
            return None
        log.warning("searching for the failing transaction among %d: %.300s", len(places), fault)
        at, fault = self._first_failing(places, fault)
        place, before = places[at], places[at - 1] if at else None
        start = (
            before.rows
            if before is not None and before.window == place.window
            else self._start_position(place.window)
        )
        rows = [_Position(place.window, count) for count in range(start + 1, place.rows + 1)]
        if len(rows) > 1:
            at, fault = self._first_failing(rows, fault)
            place = rows[at]
        raw = self._changes[place.window].slice(place.rows - 1, 1).to_pylist()[0]
        table = SchemaTimeline.from_window(self._windows[place.window]).reads(
            raw["table_id"], raw["commit_ts"]
        )
        change = decode(raw, table)
        if change.fault and self._options.filters.masking_rule is not None:
            change = replace(
                change, fault="it can't be decoded, and isn't shown: columns are masked"
            )
        return change, fault

    def _begin(self) -> None:
        """Start from the downstream's checkpoint."""
        if self._session is not None and self._downstream is not None:
            self._session.connect()
            table = CheckpointTable.from_settings(
                self._session, self._downstream, self._batch.windows[0].cluster_id
            )
            # under load a server sees late that the sink's own session was closed
            if not table.writer_lock().try_acquire(self._session, waits=True):
                raise _SearchAborted("another process writes to the downstream")
            self._checkpoint = checkpoint = table.load()
            self._session.rollback()
            if checkpoint is not None:
                # some of it may be downstream
                self._safe, in_flight = checkpoint.needs_safe_mode, checkpoint.in_flight
                self._in_flight = (
                    InFlightPayload(in_flight.until, frozenset(in_flight.left_out))
                    if in_flight is not None
                    else None
                )
                self._after = max(self._after, checkpoint.commit_ts)
                if checkpoint.shared is not None and self._after == checkpoint.commit_ts:
                    self._begun = SharedPayload(*astuple(checkpoint.shared))
        self._windows = [window for window in self._batch.windows if window.hi > self._after]
        for window in self._windows:
            changes = self._relay.read([window]) if window.parts else PART_SCHEMA.empty_table()
            commit_ts = changes["commit_ts"].to_numpy()
            self._changes.append(
                changes.slice(0, int(np.searchsorted(commit_ts, self._batch.hi, side="right")))
            )

    def _start_position(self, window: int) -> int:
        return int(
            np.searchsorted(
                self._changes[window]["commit_ts"].to_numpy(), self._after, side="right"
            )
        )

    def _positions(self) -> Iterator[_Position]:
        """Yield the positions at which transactions end."""
        for number, changes in enumerate(self._changes):
            commit_ts, start_ts = changes["commit_ts"].to_numpy(), changes["start_ts"].to_numpy()
            if not len(commit_ts):
                continue
            is_other = (commit_ts[1:] != commit_ts[:-1]) | (start_ts[1:] != start_ts[:-1])
            ends = np.flatnonzero(np.append(is_other, True)) + 1
            yield from (
                _Position(number, int(end)) for end in ends if commit_ts[end - 1] > self._after
            )

    def _first_failing(
        self, places: Sequence[_Position], fault: BaseException
    ) -> tuple[int, BaseException]:
        """Bisect for a place that fails while the one before it doesn't.

        The last fails with `fault`.
        """
        good, bad = -1, len(places) - 1
        while bad - good > 1:
            middle = (good + bad) // 2
            found = self._try(places[middle])
            if found is None:
                good = middle
            else:
                bad, fault = middle, found
        return bad, fault

    def _try(self, place: _Position) -> BaseException | None:
        """Apply everything up to a place, roll it back, and return the error or None."""
        if time.monotonic() > self._until:
            raise _SearchAborted(f"it takes longer than {_SEARCH_TIMEOUT_S:.0f} s")
        described = BatchPayload.from_windows(
            self._windows[: place.window + 1], self._after, self._batch.hi
        )
        described = replace(
            described.decided(self._overrides),
            safe=self._safe,
            in_flight=self._in_flight,
            begun=self._begun,
            rows=place.rows,
            tables_under_repair=self._batch.tables_under_repair,
            contested=self._batch.lost is not None,
            lost=self._batch.lost or (),
        )
        try:
            if self._session is not None:
                self._session.begin()
                writer = WriteExecutor(self._session)
                writer.follow(self._checkpoint)
                self._write(described, writer)
            else:
                for _ in prepare_steps(self._relay.url, described, self._options):
                    pass
            return None
        except DownstreamError as error:
            if error.transient:
                raise
            return error
        except (ApplyError, ValueError) as error:
            return error
        finally:
            if self._session is not None:
                self._session.rollback()

    def _write(self, described: BatchPayload, writer: WriteExecutor) -> None:
        for step in prepare_steps(self._relay.url, described, self._options):
            # later steps can't be tried without it, and it was not what failed
            if step.kind == "ddl":
                return
            # `bytes` and `relax` commit; they have been executed if the steps after them were.
            if step.kind not in ("commit", "bytes", "relax"):
                writer.write(step, safe=self._safe)
