"""Compare two pumps of one share where landing goes over from one of them to the other.

The pump that was read may be gone by then. So landing keeps its last answers, and asks its
successor for what it has in the same ranges. Nothing is read from the successor before that. One
range is kept in the relay log, for a process that begins after the pump and landing have both died.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from sluice.etl.landing._pump_errors import PumpUnavailableError, ReplicaDiffersError
from sluice.relay.known_pumps import AnsweredRange, KnownPumps
from sluice.tidb import tso

if TYPE_CHECKING:
    from sluice.tidb import NodeStatus, WindowBounds

Digest = Callable[["NodeStatus", int, int], tuple[int, bytes] | None]
"""Ask a pump how many transactions it has in (lo, hi] (TSO), with the digest of their contents.

None if it can't be known any more.
"""

_MAX_ANSWERS = 16
"""The last seconds of a busy cluster. An answer may hold its transactions, up to 256 KiB."""
_KEEP_INTERVAL_S = 30.0
"""A pump reads the range a second time for it, and an object store charges for the file."""


class _Answer(NamedTuple):
    pump: NodeStatus
    lo: int
    bounds: WindowBounds


class AnsweredRanges:
    """Hold the last answers of the pump of one share that is read."""

    def __init__(self, share: str = "", known: KnownPumps | None = None) -> None:
        """Begin with the range that the process before has kept in `known`."""
        self._answers: deque[_Answer] = deque(maxlen=_MAX_ANSWERS)
        self._share = share
        self._known = known
        self._kept = known.load().answered.get(share) if known is not None else None
        self._is_compared = False
        """Whether the pump that is read has what is kept of another one."""
        self._keep_due = 0.0

    @property
    def former(self) -> str:
        """Return the pump of which a range is kept, "" if there is none."""
        return self._kept.pump if self._kept is not None else ""

    def add(self, pump: NodeStatus, lo: int, bounds: WindowBounds) -> None:
        """Keep the answer of the pump that is read about what lies behind `lo` (TSO)."""
        if bounds.hi <= lo:
            return
        last = self._answers[-1] if self._answers else None
        if (
            last is not None
            and (last.pump.node_id, last.lo) == (pump.node_id, lo)
            and last.bounds.hi <= bounds.hi
        ):
            self._answers.pop()  # it was asked again
        self._answers.append(_Answer(pump, lo, bounds))

    def keep(self, pump: NodeStatus, digest: Digest) -> None:
        """Keep the newest range of the pump that is read in the relay log, now and then."""
        is_of_pump = self._kept is not None and self._kept.pump == pump.node_id
        if self._known is None or (is_of_pump and time.monotonic() < self._keep_due):
            return
        answer = next((each for each in reversed(self._answers) if each.bounds.transactions), None)
        if answer is None or answer.pump.node_id != pump.node_id:
            return
        self._keep_due = time.monotonic() + _KEEP_INTERVAL_S
        found = None
        with contextlib.suppress(PumpUnavailableError):  # what is read next needs none
            found = digest(pump, answer.lo, answer.bounds.hi)
        if found is not None:
            self._store(answer, found[0], found[1].hex())

    def compare(self, pump: NodeStatus, through_ts: int, digest: Digest) -> None:
        """Compare a pump with what others answered about ranges that it is complete in.

        It is complete through `through_ts` (TSO). Raises ReplicaDiffersError, and what `digest`
        raises. Ranges that the pump has removed, or that lie before its begin, aren't compared.
        """
        kept = self._kept
        is_of_another = kept is not None and kept.pump != pump.node_id
        if kept is not None and is_of_another and not self._is_compared and kept.hi <= through_ts:
            found = digest(pump, kept.lo, kept.hi)
            if found is not None and (
                found[0] != kept.transactions or kept.digest not in ("", found[1].hex())
            ):
                raise _differs(kept, pump, found[0])
            self._is_compared = True
        for answer in [each for each in self._answers if each.pump.node_id != pump.node_id]:
            if answer.bounds.hi > through_ts:
                continue  # landing reads nothing there before the pump has come there, too
            found = digest(pump, answer.lo, answer.bounds.hi)
            if found is not None and not _is_equal(answer, *found):
                # landing that begins again isn't to go on as if nothing had been found
                self._store(answer, answer.bounds.transactions, _kept_digest(answer))
                assert self._kept is not None
                raise _differs(self._kept, pump, found[0])
            self._answers.remove(answer)

    def _store(self, answer: _Answer, transactions: int, digest: str) -> None:
        self._kept = AnsweredRange(
            answer.pump.node_id, answer.lo, answer.bounds.hi, transactions, digest
        )
        self._is_compared = False
        if self._known is not None:
            self._known.keep_answer(self._share, self._kept)


def _is_equal(answer: _Answer, transactions: int, digest: bytes) -> bool:
    if transactions != answer.bounds.transactions:
        return False
    return not answer.bounds.window or digest == _digest_of(answer)


def _kept_digest(answer: _Answer) -> str:
    return _digest_of(answer).hex() if answer.bounds.window else ""


def _differs(former: AnsweredRange, pump: NodeStatus, transactions: int) -> ReplicaDiffersError:
    if transactions != former.transactions:
        what = f"{transactions} transactions, and that one {former.transactions}"
    else:
        what = f"other contents of its {transactions} transactions"
    return ReplicaDiffersError(
        f"pump {pump.node_id} at {pump.host} differs from pump {former.pump}, which was"
        f" read before: of the commits in ({former.lo}, {former.hi}], through"
        f" {tso.text(former.hi)}, it has {what}",
        hint=(
            "run `sluice verify`, which repairs the downstream with --repair --apply. If the new"
            f" pump is the wrong one: `sluice pumps offline {pump.node_id}`. If the other one is:"
            f" `sluice pumps offline {former.pump}`, then `sluice pumps forget {former.pump}`."
            " Then `sluice resume`. Pumps of two versions of Sluice may write one change in other"
            " bytes"
        ),
    )


def _digest_of(answer: _Answer) -> bytes:
    from sluice.tidb.pumps import window_from_bytes
    from sluice.tidb.window_schema import digest_of

    bounds = answer.bounds
    window = window_from_bytes(answer.pump.host, bounds.window, answer.lo, bounds.hi)
    return digest_of([window])[1]
