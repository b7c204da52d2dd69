"""What applying asks of the windows that it applies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from sluice.relay import AlignedChunks, Control, Overrides, WindowRecord


class ApplyLog(Protocol):
    """A log of windows as `relay.WindowLog` has them, with what may hold up who applies them. See `relay.RelayLog`."""

    @property
    def url(self) -> str: ...

    @property
    def aligned_chunks(self) -> AlignedChunks: ...

    @property
    def decisions(self) -> Overrides: ...

    def next(self, lo: int) -> WindowRecord | None: ...

    def find(self, ts: int) -> WindowRecord | None: ...

    def windows(self, from_ts: int, to_ts: int | None = None) -> Iterator[WindowRecord]: ...

    def control(self) -> Control: ...
