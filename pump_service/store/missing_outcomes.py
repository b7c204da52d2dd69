"""Ask for the outcomes of transactions whose Commit or Rollback doesn't come.

This runs apart from everything that writes. The answer is not applied here: it is written to the
value log like any Commit or Rollback, and closes the Prewrite when it comes out of the index. So an
outcome is durable once written, and writing it twice does no harm.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sluice.errors import SluiceError
from sluice.pump_service.store.binlog_head import encode_outcome, prewrite_key
from sluice.pump_service.store.errors import CorruptRecordError
from sluice.pump_service.store.records import Record, Resolver, TxnOutcomeKind
from sluice.pump_service.store.sorter import Sorter
from sluice.tidb.binlog_kinds import COMMIT, ROLLBACK

log = logging.getLogger(__name__)

_MAX_PARALLEL_QUERIES = 4
_MAX_LOOKAHEAD = 64
_POLL_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class ResolverTimes:
    """Set when a Prewrite is queried: after `after_s` in the queue, then every `retry_s`."""

    after_s: float
    retry_s: float


class OutcomeResolver:
    """Query outcomes until closed, oldest Prewrites first, `_MAX_PARALLEL_QUERIES` at a time."""

    def __init__(
        self,
        sorter: Sorter,
        resolver: Resolver,
        read: Callable[[int], bytes | None],
        write: Callable[[Record, Callable[[BaseException | None], None]], None],
        times: ResolverTimes,
    ) -> None:
        """Create it; call `start`.

        `read(start_ts)` returns the Prewrite's payload. `write(record, done)` submits an outcome as
        `Store.submit` does.
        """
        self._sorter, self._resolver, self._read, self._write = sorter, resolver, read, write
        self._after, self._retry = times.after_s, times.retry_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._querying: set[int] = set()
        self._resolved: set[int] = set()
        self._last_error: dict[int, str] = {}
        self.queries = 0
        self._pool = ThreadPoolExecutor(_MAX_PARALLEL_QUERIES, "pump-resolver")
        self._thread = threading.Thread(target=self._run, name="pump-resolving", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop querying; a running query ends by its own timeout, and its answer is dropped."""
        self._stop.set()
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        due_s = 0.0
        while not self._stop.wait(max(due_s, _POLL_INTERVAL_S)):
            due_s = 0.0
            try:
                due_s = self._run_once()
            except SluiceError as error:
                log.warning("the search for unfinished transactions failed, retrying: %s", error)
            except Exception:  # without this thread nothing unfinished would ever end
                log.exception("the search for unfinished transactions failed, retrying")

    def _run_once(self) -> float:
        """Start the queries that are due; return in how many seconds the next one may be."""
        candidates, due_s = self._sorter.unresolved(self._after, self._retry, _MAX_LOOKAHEAD)
        with self._lock:
            # A Prewrite may come again after its outcome (TiDB's retry): then it is queried again.
            self._resolved = {ts for ts in self._resolved if self._sorter.is_open(ts)}
            self._last_error = {
                ts: text for ts, text in self._last_error.items() if self._sorter.is_open(ts)
            }
            fresh = [
                ts for ts in candidates if ts not in self._querying and ts not in self._resolved
            ]
            self._querying.update(fresh)
        for start_ts in fresh:
            self._pool.submit(self._query, start_ts)
        return due_s

    def _query(self, start_ts: int) -> None:
        try:
            if not self._stop.is_set():
                self._decide(start_ts)
        except Exception as error:  # not known yet: asked again after the retry interval
            text = f"{type(error).__name__}: {error}"
            with self._lock:
                known = self._last_error.get(start_ts) == text
                self._last_error[start_ts] = text
            if not known:
                log.warning(
                    "querying the outcome of transaction %d failed, retrying: %s", start_ts, text
                )
        finally:
            with self._lock:
                self._querying.discard(start_ts)

    def _decide(self, start_ts: int) -> None:
        payload = self._read(start_ts)
        if payload is None:
            raise CorruptRecordError(
                "index", 0, f"the Prewrite of transaction {start_ts} can't be found"
            )
        self.queries += 1
        kind, commit_ts = self._resolver(start_ts, prewrite_key(payload))
        if kind is TxnOutcomeKind.PENDING or self._stop.is_set():
            return
        if kind is TxnOutcomeKind.COMMITTED:
            if commit_ts <= start_ts:
                raise ValueError(
                    f"the resolver reports that transaction {start_ts} committed at {commit_ts},"
                    " before it began"
                )
            record = Record(
                COMMIT, start_ts, commit_ts, encode_outcome(COMMIT, start_ts, commit_ts)
            )
        else:
            record = Record(ROLLBACK, start_ts, 0, encode_outcome(ROLLBACK, start_ts, 0))
        with self._lock:
            self._resolved.add(start_ts)
        log.info(
            "transaction %d, whose Commit never came, is %s (%d)", start_ts, kind.value, commit_ts
        )
        self._write(record, lambda error: self._written(start_ts, error))

    def _written(self, start_ts: int, error: BaseException | None) -> None:
        if error is not None:
            log.warning("can't write the outcome of transaction %d, retrying: %s", start_ts, error)
            with self._lock:
                self._resolved.discard(start_ts)
