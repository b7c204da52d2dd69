"""Divide the captured key space into pieces, each with the timestamp through which it is known.

The pieces cover the spans without a hole or an overlap at every moment, so the least of their
resolved timestamps is the frontier. A piece belongs to at most one subscription. When that ends,
for whatever reason, the piece keeps its timestamp, and the next subscription begins there. So
splits, merges and lost streams lose nothing, and what comes again lies above the piece's timestamp.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from enum import Enum

from sluice.tidb.pd import Region
from sluice.tidb.table_shares import Share


class PieceState(Enum):
    """Name what a piece waits for."""

    UNKNOWN = "its region is not known"
    LOCATING = "PD is asked for its region"
    WAITING = "it waits to be subscribed"
    SCANNING = "TiKV scans it"
    LIVE = "live"


class Piece:
    """Hold a range of raw keys [start, end) and the timestamp through which changes are known."""

    __slots__ = (
        "end",
        "failures",
        "not_before",
        "region",
        "resolved_ts",
        "start",
        "state",
        "was_live",
    )

    def __init__(self, start: bytes, end: bytes, resolved_ts: int) -> None:
        self.start, self.end = start, end
        self.resolved_ts = resolved_ts
        self.state = PieceState.UNKNOWN
        self.region: Region | None = None
        self.not_before = 0.0
        """Time (monotonic) before which it isn't tried again."""
        self.failures = 0
        """Failures since it was live."""
        self.was_live = False

    def __repr__(self) -> str:
        return f"Piece({self.start.hex()}, {self.end.hex()}, {self.resolved_ts}, {self.state.name})"


class Coverage:
    """Hold the pieces in key order. Not thread-safe."""

    def __init__(
        self, spans: Sequence[tuple[bytes, bytes]], from_ts: int, share: Share | None = None
    ) -> None:
        """Create the coverage.

        `spans` are disjoint ranges of raw keys, in order; all is captured above `from_ts`.

        Of the tables only those of `share` are covered, None for all.
        """
        self._share = share or Share()
        self._pieces = [Piece(start, end, from_ts) for start, end in spans]
        self._starts = [piece.start for piece in self._pieces]
        self.idle = set(self._pieces)
        """Pieces in state UNKNOWN."""

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def frontier(self) -> int:
        """Return the timestamp through which all changes of all spans have come."""
        return min([piece.resolved_ts for piece in self._pieces])

    def due(self, now: float) -> list[tuple[bytes, bytes]]:
        """Mark the pieces to be located now; return their ranges, adjacent ones as one."""
        ranges: list[tuple[bytes, bytes]] = []
        for piece in sorted(
            (each for each in self.idle if each.not_before <= now), key=lambda each: each.start
        ):
            self.mark(piece, PieceState.LOCATING)
            if ranges and ranges[-1][1] == piece.start:
                ranges[-1] = (ranges[-1][0], piece.end)
            else:
                ranges.append((piece.start, piece.end))
        return ranges

    def mark(self, piece: Piece, state: PieceState) -> None:
        """Change the state of a piece."""
        if state is PieceState.UNKNOWN:
            self.idle.add(piece)
            piece.region = None
        else:
            self.idle.discard(piece)
        piece.state = state

    def located(self, start: bytes, end: bytes, regions: Sequence[Region]) -> list[Piece]:
        """Cut the pieces of [start, end) that are being located along these regions.

        Returns the new pieces. Adjacent ones of one region become one piece, known through the
        least of their timestamps. Pieces that no region covers stay LOCATING: the caller marks
        them.
        """
        found: list[Piece] = []
        for region in regions:
            low = max(start, region.start_key)
            high = min(end, region.end_key) if region.end_key else end
            for piece in self._cut(low, high):
                last = found[-1] if found else None
                if last is not None and last.end == piece.start and last.region is region:
                    last.resolved_ts = min(last.resolved_ts, piece.resolved_ts)
                    last.was_live = last.was_live or piece.was_live
                    last.failures = max(last.failures, piece.failures)
                    last.end = piece.end
                    self._remove(piece)
                    continue
                piece.region = region
                self.mark(piece, PieceState.WAITING)
                found.append(piece)
        return found

    def drop_foreign(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Stop covering those of the pieces that have tables of other shares alone.

        Returns the others. The share of a table never changes: nothing of this one will come there.
        """
        kept = []
        for piece in pieces:
            if self._share.may_own(piece.start, piece.end):
                kept.append(piece)
            else:
                self._remove(piece)
        return kept

    def locating(self, start: bytes, end: bytes) -> list[Piece]:
        """Return the pieces of [start, end) that are being located."""
        first = max(bisect.bisect_right(self._starts, start) - 1, 0)
        last = bisect.bisect_left(self._starts, end)
        return [
            piece
            for piece in self._pieces[first:last]
            if piece.state is PieceState.LOCATING and piece.start < end and start < piece.end
        ]

    def _cut(self, low: bytes, high: bytes) -> list[Piece]:
        """Return the located pieces in [low, high), after cutting them at both ends."""
        inside = []
        for piece in self.locating(low, high) if low < high else []:
            if piece.start < low:
                piece = self._split(piece, low)
            if high < piece.end:
                self._split(piece, high)
            inside.append(piece)
        return inside

    def _split(self, piece: Piece, at: bytes) -> Piece:
        """Cut a piece in two; return the second one."""
        rest = Piece(at, piece.end, piece.resolved_ts)
        rest.state, rest.not_before, rest.failures = piece.state, piece.not_before, piece.failures
        rest.was_live = piece.was_live
        piece.end = at
        index = bisect.bisect_left(self._starts, at)
        self._starts.insert(index, at)
        self._pieces.insert(index, rest)
        return rest

    def _remove(self, piece: Piece) -> None:
        index = bisect.bisect_left(self._starts, piece.start)
        del self._starts[index], self._pieces[index]
        self.idle.discard(piece)
