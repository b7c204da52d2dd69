"""Know the pumps that counted once: each counts until everything that it holds is landed.

A registry may lose entries (PD rebuilt, etcd restored), and an operator may set a dead pump
offline. In both cases the pump's last binlogs would be passed over. A pump of Sluice's that goes
offline by itself leaves in its entry the TSO through which all drainers have read it. An original
pump leaves no such proof: the states that it went through count.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from sluice.etl.landing._pump_errors import PumpUnavailableError, UnreadPumpError
from sluice.relay.known_pumps import KnownPump, KnownPumps, PumpsDocument
from sluice.tidb import NodeStatus, tso

FAKE_BINLOG_INTERVAL = tso.span(5_000)
"""How far an idle original pump's last timestamp may be beyond what it holds.

It writes a fake binlog every 3 s.
"""


class PumpMembership:
    """The pumps that count, as the relay log records them. `known`: None without a relay log."""

    def __init__(self, known: KnownPumps | None) -> None:
        self._known = known
        self._loaded_pumps: PumpsDocument | None = None

    def invalidate(self) -> None:
        """Drop what was loaded: another process may have landed since."""
        self._loaded_pumps = None

    def check(self, registered: Sequence[NodeStatus], lo: int) -> None:
        """Raise PumpUnavailableError or UnreadPumpError if a window passes over a pump.

        The window is one after `lo` (TSO).
        """
        if (problem := self._problem(registered, lo)) is None:
            return
        self._loaded_pumps = None  # an operator may have given up what it holds
        if (problem := self._problem(registered, lo)) is not None:
            raise problem

    def record(
        self,
        counting: Iterable[NodeStatus],
        originals: Container[str] = (),
        *,
        are_captured: bool = False,
    ) -> None:
        """Record these pumps durably as those that count.

        `originals`: addresses of original pumps. `are_captured`: they capture from TiKV, and
        binlogs are never read again.
        """
        if self._known is None:
            return
        pumps = {
            pump.node_id: KnownPump(pump.host, pump.state, pump.host in originals)
            for pump in counting
        }
        seen = self._load()
        if pumps == seen.pumps and (seen.is_captured or not are_captured):
            return
        gone = seen.pumps.keys() - pumps.keys()
        self._loaded_pumps = self._known.change(
            lambda seen: replace(
                seen,
                pumps={
                    each: pump for each, pump in {**seen.pumps, **pumps}.items() if each not in gone
                },
                former=(seen.former | gone) - pumps.keys(),
                is_captured=seen.is_captured or are_captured,
            )
        )

    def has_counted(self) -> bool:
        """Return whether pumps are recorded."""
        return bool(self._load().pumps)

    def are_captured(self) -> bool:
        """Return whether captured changes were read."""
        return self._load().is_captured

    def is_new(self, node_id: str) -> bool:
        """Return whether the pump never counted, while others did."""
        seen = self._load()
        return bool(seen.pumps) and node_id not in seen.pumps and node_id not in seen.former

    def _load(self) -> PumpsDocument:
        if self._loaded_pumps is None:
            self._loaded_pumps = self._known.load() if self._known is not None else PumpsDocument()
        return self._loaded_pumps

    def _problem(
        self, registered: Sequence[NodeStatus], lo: int
    ) -> PumpUnavailableError | UnreadPumpError | None:
        known = self._load().pumps
        entries = {pump.node_id: pump for pump in registered}
        for node_id, pump in known.items():
            if node_id not in entries:
                return _missing(node_id, pump)
        for entry in registered:
            if entry.state == "offline" and not _is_read(entry, known.get(entry.node_id), lo):
                return _unread(entry, lo)
        return None


def _is_read(entry: NodeStatus, known: KnownPump | None, lo: int) -> bool:
    """Return whether its entry proves that all an offline pump held is at or before `lo` (TSO)."""
    if entry.drained_ts is not None:
        return entry.drained_ts <= lo
    # it didn't count since the relay log began: what lies before that isn't wanted
    if known is None:
        return not lo or entry.max_commit_ts <= lo
    return (
        known.is_original
        and known.state == "closing"
        and entry.max_commit_ts <= lo + FAKE_BINLOG_INTERVAL
    )


def _missing(node_id: str, pump: KnownPump) -> PumpUnavailableError:
    return PumpUnavailableError(
        f"pump {node_id!r} at {pump.host}, last seen {pump.state}, has no entry in the registry:"
        " what it holds would be passed over, so every window waits for it",
        hint=(
            "start the pump, it registers itself again; if it is gone for good, accept the loss of"
            f" what was not landed: `sluice pumps forget {node_id}`"
        ),
    )


def _unread(entry: NodeStatus, lo: int) -> UnreadPumpError:
    through = max(entry.drained_ts or 0, entry.max_commit_ts)
    what = (
        f"commits in ({lo}, {through}], through {tso.text(through)}, were on it"
        if through > lo
        else f"it didn't go offline by itself, and what it took after commit_ts {lo} is unknown"
    )
    return UnreadPumpError(
        f"pump {entry.node_id!r} at {entry.host} is offline with binlogs that were not landed:"
        f" {what}; landing ends at {tso.text(lo)}",
        hint=(
            "bring its disk back and start the pump. If its binlogs are lost: `sluice pumps forget"
            f" {entry.node_id}` accepts that, `sluice resume`, then `sluice verify` and its"
            " --repair bring the rows"
        ),
    )
