"""Ask pumps for their bounds, over connections that outlive a plan.

A pump without the call Bounds is an original one: its PullBinlogs stream is followed instead, and
its bounds are what has arrived (sluice.tidb.pumps.pulled_window).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from sluice.etl.landing._pump_errors import CommitsPurgedError, PumpUnavailableError

if TYPE_CHECKING:
    from sluice.etl.settings import Window as WindowSettings
    from sluice.tidb import TLS, NodeStatus, PumpReader, PumpReadError, WindowBounds
    from sluice.tidb.pumps import PendingBounds, PullFollower

log = logging.getLogger("sluice.land")

_BARRIER_TIMEOUT_MS = 100
_BOUNDS_TIMEOUT_S = 10.0
_MAX_INLINE_BYTES = 256 * 2**10


class PumpBounds:
    """Hold the connections to the pumps of a cluster. Requests come from one thread at a time."""

    def __init__(self, cluster_id: int, limits: WindowSettings, tls: TLS | None) -> None:
        """Create the pump bounds.

        `limits` are those of a window, `tls` is for connections to pumps.
        """
        self._cluster_id, self._limits, self._tls = cluster_id, limits, tls
        self.readers: dict[str, PumpReader] = {}
        """Connections to Sluice pumps, by address."""
        self.followers: dict[str, PullFollower] = {}
        """Streams of original pumps, by address."""
        self._threads = ThreadPoolExecutor(max_workers=16, thread_name_prefix="bounds")

    def keep_only(self, hosts: Iterable[str]) -> None:
        """Close the connections to all other addresses."""
        kept = set(hosts)
        # copies: a request to a pump that hangs may end in its thread meanwhile
        for host in set(self.followers) - kept:
            self.followers.pop(host).close()
        for host in set(self.readers) - kept:
            if (reader := self.readers.pop(host, None)) is not None:
                reader.close()

    def close(self) -> None:
        """Close all connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.keep_only(())

    def request(
        self, pump: NodeStatus, lo: int, fresh_ts: int, *, ts_is_checked: bool = False
    ) -> BoundsRequest:
        """Send the request for a pump's bounds.

        `ts_is_checked`: see `PumpReader.request_bounds`.
        """
        reader = self._reader(pump) if pump.host not in self.followers else None
        limits = self._limits.max_transactions, self._limits.max_bytes
        asked = lo, fresh_ts, _BARRIER_TIMEOUT_MS, *limits, _MAX_INLINE_BYTES
        begun = reader.request_bounds(*asked, ts_is_checked=ts_is_checked) if reader else None
        return BoundsRequest(begun, lambda: self._threads.submit(self._bounds, pump, lo, fresh_ts))

    def _reader(self, pump: NodeStatus) -> PumpReader | None:
        """Return the connection to a pump; None if the address was one of another share."""
        reader = self.readers.get(pump.host)
        return reader if reader is not None and reader.share == pump.captured_share else None

    def _bounds(self, pump: NodeStatus, lo: int, fresh_ts: int) -> WindowBounds:
        from sluice.tidb import PumpReadError

        try:
            bounds = self._follow_original_pump(pump, lo)
            if bounds is not None:
                return bounds
            try:
                return self._request_from_sluice(pump, lo, fresh_ts)
            except PumpReadError as error:
                if not error.unimplemented:
                    raise
            return self._follow(pump, lo)
        except PumpReadError as error:
            raise self.read_error(pump, lo, error) from error

    def digest(self, pump: NodeStatus, lo: int, hi: int) -> tuple[int, bytes] | None:
        """Return how many transactions a pump has in (lo, hi] (TSO), and a digest of them.

        None if it has removed them, can't read one of them, or is an older pump that has no
        digests. Raises PumpUnavailableError.
        """
        import grpc

        from sluice.tidb import PumpReadError
        from sluice.tidb.rpc import status

        try:
            _, transactions, digest = self._sluice_reader(pump).digest(lo, hi)
        except PumpReadError as error:
            found = self.read_error(pump, lo, error)
            # What is landed isn't wanted of this pump: a record there that it can't read does no
            # harm.
            is_unreadable = status(error.__cause__ or error) == grpc.StatusCode.DATA_LOSS
            is_gone = error.unimplemented or not isinstance(found, PumpUnavailableError)
            if is_gone or is_unreadable:
                log.info("captured range not compared pump=%s reason=%r", pump.node_id, str(error))
                return None
            raise found from error
        return transactions, digest

    def read_error(
        self, pump: NodeStatus, lo: int, error: PumpReadError
    ) -> CommitsPurgedError | PumpUnavailableError:
        """Return what it means for landing that a pump can't be asked."""
        import grpc

        from sluice.tidb.pumps import CommitsGoneError
        from sluice.tidb.rpc import status

        if (
            isinstance(error, CommitsGoneError)
            or status(error.__cause__ or error) == grpc.StatusCode.OUT_OF_RANGE
        ):
            return CommitsPurgedError(
                f"pump {pump.node_id} at {pump.host}: {error}; the relay log ends at {lo}",
                hint=CommitsPurgedError.hint,
            )
        what = f"pump {pump.node_id} at {pump.host}, state {pump.state}, can't be asked ({error})"
        if pump.captured_cluster_id is not None:
            return PumpUnavailableError(
                what, hint="start it again, or another pump that captures the cluster"
            )
        return PumpUnavailableError(
            f"{what}; every window waits for it",
            hint=(
                f"start it again; if it is gone for good: `sluice pumps offline {pump.node_id}"
                " --gone`"
            ),
        )

    def _request_from_sluice(self, pump: NodeStatus, lo: int, fresh_ts: int) -> WindowBounds:
        """Return the bounds from a Sluice pump."""
        from sluice.tidb import PumpReadError

        reader = self._sluice_reader(pump)
        try:
            limits = self._limits.max_transactions, self._limits.max_bytes
            return reader.bounds(lo, fresh_ts, _BARRIER_TIMEOUT_MS, *limits, _MAX_INLINE_BYTES)
        except PumpReadError:
            self.readers.pop(pump.host, None)
            reader.close()
            raise

    def _sluice_reader(self, pump: NodeStatus) -> PumpReader:
        """Return the connection to a pump, opened if there is none."""
        from sluice.tidb import PumpReader

        reader = self._reader(pump)
        if reader is None:
            if (former := self.readers.pop(pump.host, None)) is not None:
                former.close()
            reader = self.readers[pump.host] = PumpReader(
                pump.host,
                self._cluster_id,
                tls=self._tls,
                timeout_s=_BOUNDS_TIMEOUT_S,
                share=pump.captured_share,
            )
        return reader

    def _follow_original_pump(self, pump: NodeStatus, lo: int) -> WindowBounds | None:
        """Return the bounds of an original pump that is followed from `lo` on; None if it isn't.

        Once its stream has broken, it is tried as any other pump: a Sluice pump may have taken its
        place.
        """
        from sluice.tidb import PumpReadError

        follower = self.followers.get(pump.host)
        if follower is None:
            return None
        try:
            if follower.follows(lo):
                return follower.bounds(lo)
        except PumpReadError:
            del self.followers[pump.host]
            follower.close()
            raise
        del self.followers[pump.host]  # a window is planned again
        follower.close()
        return None

    def _follow(self, pump: NodeStatus, lo: int) -> WindowBounds:
        """Begin to follow an original pump."""
        from sluice.tidb import PumpReader, PumpReadError
        from sluice.tidb.pumps import PullFollower

        reader = PumpReader(pump.host, self._cluster_id, tls=self._tls, timeout_s=_BOUNDS_TIMEOUT_S)
        try:
            follower = PullFollower(
                reader, lo, self._limits.max_transactions, self._limits.max_bytes
            )
        except PumpReadError:
            reader.close()
            raise
        self.followers[pump.host] = follower
        return follower.bounds(lo)


class BoundsRequest:
    """A request for a pump's bounds, over a connection that this or another thread reads."""

    def __init__(
        self, begun: PendingBounds | None, by_thread: Callable[[], Future[WindowBounds]]
    ) -> None:
        self._pending = begun
        self._by_thread = by_thread
        self._future = by_thread() if begun is None else None

    def collect(self) -> Future[WindowBounds]:
        """Wait for the outcome."""
        self.is_done(None)
        assert self._future is not None
        return self._future

    def is_done(self, timeout_s: float | None) -> bool:
        """Return whether the outcome is there, waiting for it; None: as long as it takes.

        A connection that this thread reads has its own timeout, which adds to this.
        """
        if self._future is None:
            self._future = self._received()
        try:
            self._future.exception(timeout_s)
        except TimeoutError:
            return False
        return True

    def failure(self) -> BaseException | None:
        """Return the error of the request; None if it was answered."""
        return self.collect().exception()

    def answer(self) -> WindowBounds:
        """Return the bounds. Raises what `PumpBounds.request` names."""
        return self.collect().result()

    def _received(self) -> Future[WindowBounds]:
        from sluice.tidb import PumpReadError

        assert self._pending is not None
        answer = None
        # the second request raises it again, and names the pump
        with contextlib.suppress(PumpReadError):
            answer = self._pending.get()
        if answer is None:
            return self._by_thread()
        found: Future[WindowBounds] = Future()
        found.set_result(answer)
        return found


def collect(questions: Iterable[BoundsRequest]) -> None:
    for question in list(questions):
        question.collect()
