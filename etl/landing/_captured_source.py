"""Choose which of the pumps that capture a cluster landing reads.

Each of them holds everything that the cluster committed behind its begin, in its share of the
tables. Pumps of one share are replicas of each other, and one is enough. A window comes from one
pump for each share of the same count: two counts are never mixed. A pump that began above what is
landed doesn't have what comes next, and answers so.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sluice.errors import SluiceError
from sluice.etl.landing._pump_errors import (
    CommitsPurgedError,
    PumpUnavailableError,
    ReplicaDiffersError,
)
from sluice.etl.landing._replica_switch import AnsweredRanges, Digest
from sluice.tidb import tso
from sluice.tidb.table_shares import Share

if TYPE_CHECKING:
    from sluice.etl.landing._pump_bounds import BoundsRequest
    from sluice.relay.known_pumps import KnownPumps
    from sluice.tidb import NodeStatus, WindowBounds

log = logging.getLogger("sluice.land")

STALLED_TSO = tso.span(3_000)
"""How far the pump that is read may be behind PD's clock before the others are asked.

TiKV moves its resolved timestamps every second or less.
"""
_AHEAD_TSO = tso.span(2_000)
"""How far ahead another one has to be: they take turns otherwise, and each begins cold."""
_ANSWER_TIMEOUT_S = 1.5
"""A pump that hangs isn't waited for longer, if others answer."""


class CapturedAnswer(NamedTuple):
    """A pump that captures, and its bounds."""

    pump: NodeStatus
    bounds: WindowBounds


class CapturedShares:
    """The pumps that are read, one for each share of the tables."""

    def __init__(self, known: KnownPumps | None = None) -> None:
        """Begin with what the relay log knows of pumps; None without one."""
        self._known = known
        self._sources: dict[Share, CapturedSource] = {}
        self._count = 0
        """How many shares are read."""

    def choose(
        self,
        pumps: Sequence[NodeStatus],
        lo: int,
        fresh_ts: int,
        ask: Callable[[NodeStatus], BoundsRequest],
        digest: Digest,
    ) -> list[CapturedAnswer]:
        """Return the pumps to read behind `lo` (TSO), which have all tables, with their bounds.

        Parameters and errors are those of `CapturedSource.choose`. Where pumps divide the tables by
        several counts, another count is read only if it is ahead as another replica would have to
        be.
        """
        by_share: dict[Share, list[NodeStatus]] = defaultdict(list)
        for pump in pumps:
            by_share[_share_of(pump)].append(pump)
        found: dict[int, list[CapturedAnswer]] = {}
        failures: list[SluiceError] = []
        counts = {share.count for share in by_share}
        for count in sorted(counts, key=lambda each: (each != self._count, each)):
            answers: list[CapturedAnswer] = []
            wrong: list[SluiceError] = []
            for share in (Share(number, count) for number in range(1, count + 1)):
                try:
                    if share not in by_share:
                        raise _share_missing(share)
                    answers.append(
                        self._source(share).choose(by_share[share], lo, fresh_ts, ask, digest)
                    )
                except ReplicaDiffersError:
                    raise  # no other division of the tables makes it right
                except SluiceError as error:
                    wrong.append(error)
            failures += wrong
            if not wrong:
                found[count] = answers
                if count == self._count and _reach(answers) >= fresh_ts - STALLED_TSO:
                    break
        if not found:
            raise _none_usable(lo, failures)
        best = max(found, key=lambda count: _reach(found[count]))
        current = self._count if self._count in found else best
        if _reach(found[best]) - _reach(found[current]) > _AHEAD_TSO:
            current = best
        self._count = current
        return found[current]

    def _source(self, share: Share) -> CapturedSource:
        if share not in self._sources:
            name = "" if share.is_whole else str(share)
            self._sources[share] = CapturedSource(name, self._known)
        return self._sources[share]


def _share_of(pump: NodeStatus) -> Share:
    return Share.parse(pump.captured_share) if pump.captured_share else Share()


def _share_missing(share: Share) -> PumpUnavailableError:
    return PumpUnavailableError(
        f"no pump captures share {share} of the tables: every window waits for one",
        hint=f'start a pump with `share = "{share}"` in [capture], and a start-ts at or below what'
        " is landed",
    )


def _reach(answers: Sequence[CapturedAnswer]) -> int:
    return min(answer.bounds.max_commit_ts for answer in answers)


class CapturedSource:
    """The pump that is read; another one takes its place if it fails or falls behind."""

    def __init__(self, share: str = "", known: KnownPumps | None = None) -> None:
        """Begin with the pump of the share that the relay log has as the one that is read."""
        self._answered = AnsweredRanges(share, known)
        self._node_id = self._answered.former

    def choose(
        self,
        pumps: Sequence[NodeStatus],
        lo: int,
        fresh_ts: int,
        ask: Callable[[NodeStatus], BoundsRequest],
        digest: Digest,
    ) -> CapturedAnswer:
        """Return the pump to read behind `lo` (TSO), with its bounds.

        `pumps` are those that capture the cluster, `ask` begins to ask one for its bounds,
        `digest` asks one what it has in a range. Raises PumpUnavailableError or CommitsPurgedError
        if no pump has what comes next, and ReplicaDiffersError if the one that has it captured
        other changes than the one before.
        """
        former = self._node_id
        answers = _answers([pump for pump in pumps if pump.node_id == former], ask)
        leader = answers.get(former)
        if (
            not isinstance(leader, CapturedAnswer)
            or leader.bounds.max_commit_ts < fresh_ts - STALLED_TSO
        ):
            answers |= _answers([pump for pump in pumps if pump.node_id != former], ask)
        found = [each for each in answers.values() if isinstance(each, CapturedAnswer)]
        failures = [each for each in answers.values() if not isinstance(each, CapturedAnswer)]
        answer = furthest(found, former)
        if answer is None:
            raise _none_usable(lo, failures)
        pump = answer.pump
        self._answered.compare(pump, answer.bounds.max_commit_ts, digest)
        self._answered.add(pump, lo, answer.bounds)
        self._answered.keep(pump, digest)
        if pump.node_id != former:
            log.info(
                "reading captured changes pump=%s host=%s share=%s after_ts=%d former_pump=%s"
                " failure=%r",
                pump.node_id,
                pump.host,
                pump.captured_share or "all",
                lo,
                former or "-",
                str(leader) if isinstance(leader, SluiceError) else "",
            )
            self._node_id = pump.node_id
        return answer


def _answers(
    pumps: Sequence[NodeStatus], ask: Callable[[NodeStatus], BoundsRequest]
) -> dict[str, CapturedAnswer | SluiceError]:
    """Ask pumps side by side. Return what each answered, or why it didn't, by node id."""
    found: dict[str, CapturedAnswer | SluiceError] = {}
    for pump, request in [(pump, ask(pump)) for pump in pumps]:
        if not request.is_done(_ANSWER_TIMEOUT_S):
            found[pump.node_id] = PumpUnavailableError(
                f"pump {pump.node_id} at {pump.host} didn't answer within {_ANSWER_TIMEOUT_S:g} s"
            )
            continue
        failure = request.failure()
        if failure is None:
            found[pump.node_id] = CapturedAnswer(pump, request.answer())
        elif isinstance(failure, SluiceError):
            found[pump.node_id] = failure
        else:
            raise failure
    return found


def furthest(answers: Collection[CapturedAnswer], node_id: str) -> CapturedAnswer | None:
    """Return the one to read: that of `node_id` unless another is far ahead of it."""
    if not answers:
        return None
    best = max(answers, key=lambda each: (each.bounds.max_commit_ts, each.pump.node_id))
    current = next((each for each in answers if each.pump.node_id == node_id), best)
    is_behind = best.bounds.max_commit_ts - current.bounds.max_commit_ts > _AHEAD_TSO
    return best if is_behind else current


def _none_usable(lo: int, failures: Sequence[SluiceError]) -> SluiceError:
    """Return why no pump has what was committed behind `lo` (TSO)."""
    if not failures:
        return PumpUnavailableError(
            f"no pump captures the cluster now, and what is landed through {lo} was captured:"
            " every window waits for one",
            hint=(
                "start a pump that captures again. Binlogs aren't read any more: TiDB may have"
                " stopped to write them since"
            ),
        )
    if len(failures) == 1:
        return failures[0]
    text = "; ".join(map(str, failures))
    if any(failure.transient for failure in failures):
        return PumpUnavailableError(
            f"none of the {len(failures)} pumps that capture can be read after {lo}: {text}",
            hint="start one of them again that has what comes next",
        )
    return CommitsPurgedError(text, hint=CommitsPurgedError.hint)
