"""Compare two pumps of one share where landing goes over from one of them to the other.

The pump that was read may be gone by then. So landing keeps its last answers, and asks its
successor for what it has in the same ranges. Nothing is read from the successor before that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from sluice.etl.landing._pump_errors import ReplicaDiffersError
from sluice.tidb import tso

if TYPE_CHECKING:
    from sluice.tidb import NodeStatus, WindowBounds

Digest = Callable[["NodeStatus", int, int], tuple[int, bytes] | None]
"""Ask a pump how many transactions it has in (lo, hi] (TSO), with the digest of their contents.

None if it can't be known any more.
"""

_MAX_ANSWERS = 16
"""The last seconds of a busy cluster. An answer may hold its transactions, up to 256 KiB."""


class _Answer(NamedTuple):
    pump: NodeStatus
    lo: int
    bounds: WindowBounds


class AnsweredRanges:
    """Hold the last answers of the pump that is read."""

    def __init__(self) -> None:
        self._answers: deque[_Answer] = deque(maxlen=_MAX_ANSWERS)

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

    def compare(self, pump: NodeStatus, through_ts: int, digest: Digest) -> None:
        """Compare a pump with what others answered about ranges that it is complete in.

        It is complete through `through_ts` (TSO). Raises ReplicaDiffersError, and what `digest`
        raises. Ranges that the pump has removed, or that lie before its begin, aren't compared.
        """
        for answer in [each for each in self._answers if each.pump.node_id != pump.node_id]:
            if answer.bounds.hi > through_ts:
                continue  # landing reads nothing there before the pump has come there, too
            found = digest(pump, answer.lo, answer.bounds.hi)
            if found is not None:
                _check_equal(answer, pump, *found)
            self._answers.remove(answer)


def _check_equal(answer: _Answer, pump: NodeStatus, transactions: int, digest: bytes) -> None:
    lo, former = answer.lo, answer.bounds
    if transactions != former.transactions:
        what = f"{transactions} transactions, and that one {former.transactions}"
    elif former.window and digest != _digest_of(answer):
        what = f"other contents of its {transactions} transactions"
    else:
        return
    raise ReplicaDiffersError(
        f"pump {pump.node_id} at {pump.host} differs from pump {answer.pump.node_id}, which was"
        f" read before: of the commits in ({lo}, {former.hi}], through {tso.text(former.hi)}, it"
        f" has {what}",
        hint=(
            "run `sluice verify`, which repairs the downstream with --repair --apply. If the new"
            f" pump is the wrong one: `sluice pumps offline {pump.node_id}`. Then `sluice resume`."
            " Pumps of two versions of Sluice may write one change in other bytes"
        ),
    )


def _digest_of(answer: _Answer) -> bytes:
    from sluice.tidb.pumps import window_from_bytes
    from sluice.tidb.window_schema import digest_of

    bounds = answer.bounds
    window = window_from_bytes(answer.pump.host, bounds.window, answer.lo, bounds.hi)
    return digest_of([window])[1]
