"""Know what the downstream's own applications changed last, from the other direction's relay log.

Only changes that are younger than the oldest one to be applied can be conflicts, so that is all
that is kept: for each key the newest commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sluice.errors import SluiceError
from sluice.etl.apply._touched_keys import Key, KeyReader
from sluice.etl.changes.rules import Filter
from sluice.etl.downstream.sinks import ApplyError
from sluice.relay import RelayLog
from sluice.tidb import tso
from sluice.tidb.schema import Table

log = logging.getLogger("sluice.apply")

_POLL_INTERVAL_S = 0.01
_TIMEOUT_S = 30.0
"""How long to wait for the other direction's landing, before applying begins again."""


class ReverseLogBehind(SluiceError):
    """The other direction hasn't landed what conflicts are found by."""

    transient = True
    hint = "let the pipeline of the other direction land (`sluice status` of it shows why not)"


class LocalChanges:
    """The newest commit of each key that was changed on the downstream itself."""

    def __init__(self, relay: RelayLog, filters: Filter, channel: int) -> None:
        """Read `relay`, where what this pipeline wrote has the mark of `channel`."""
        self._relay = relay
        self._reader = KeyReader(relay.url, filters, channel)
        self._position: int | None = None
        self._newest: dict[tuple[str, str], dict[Key, int]] = {}
        self._tables: dict[tuple[str, str], Table] = {}
        self.cluster_id = 0
        """The downstream's, as a cluster of the other direction; 0 before anything is read."""

    def newest(self, table: tuple[str, str]) -> dict[Key, int]:
        """Return the newest commit_ts by key, of a table as `TouchedKeys.name`."""
        return self._newest.get(table, {})

    def definition(self, table: tuple[str, str]) -> Table:
        """Return a table that `newest` has keys of, as the downstream has it."""
        return self._tables[table]

    def read_through(
        self, since: int, through: int, nudge: Callable[[], None], stopped: Callable[[], bool]
    ) -> None:
        """Read what was committed since the millisecond of `since`, up to `through` (TSOs).

        `nudge` is called once if that isn't landed yet: it commits something for landing to find.
        Raises ReverseLogBehind, ApplyError if the log begins later, relay errors.
        """
        if self._position is None:
            self._position = self._begin(since)
        deadline, is_nudged = time.monotonic() + _TIMEOUT_S, False
        while self._position < through:
            window = self._relay.next(self._position) or self._relay.find(self._position)
            if window is not None and window.lo <= self._position:
                self.cluster_id = window.cluster_id
                for touched in self._reader.read(window, self._position, window.hi):
                    newest = self._newest.setdefault(touched.name, {})
                    self._tables[touched.name] = touched.table
                    commit_ts = touched.changes["commit_ts"].to_pylist()
                    for keys in touched.row_keys():
                        newest.update(
                            (key, ts)
                            for key, ts in zip(keys, commit_ts, strict=True)
                            if key is not None and ts > newest.get(key, 0)
                        )
                self._position = window.hi
                continue
            if window is not None:
                raise self._gap(self._position, window.lo)
            if not is_nudged:
                nudge()
                is_nudged = True
            if stopped() or time.monotonic() > deadline:
                raise ReverseLogBehind(
                    f"the relay log {self._relay.url} of the other direction is landed through"
                    f" {tso.text(self._position)}, and {tso.text(through)} is needed to find"
                    " conflicts"
                )
            time.sleep(_POLL_INTERVAL_S)

    def _begin(self, since: int) -> int:
        position = tso.compose(tso.physical_ms(since)) - 1
        first = self._relay.first()
        if first is None:
            raise ReverseLogBehind(
                f"the relay log {self._relay.url} of [apply] reverse-relay has no window yet"
            )
        if first.lo > position:
            raise self._gap(position, first.lo)
        return position

    def _gap(self, after: int, lo: int) -> ApplyError:
        return ApplyError(
            f"the relay log {self._relay.url} of the other direction has nothing between"
            f" {tso.text(after)} and {tso.text(lo)}: what was changed on the downstream then is"
            " unknown, so conflicts can't be found",
            hint=(
                "if nothing wrote to the downstream then, take [apply] reverse-relay out until"
                f" the checkpoint is past {lo}; else compare both sides, and copy one again"
            ),
        )

    def forget_before(self, ts: int) -> None:
        """Forget keys whose newest commit is older than the millisecond of `ts` (TSO)."""
        oldest = tso.compose(tso.physical_ms(ts))
        for name, keys in self._newest.items():
            if any(each < oldest for each in keys.values()):
                self._newest[name] = {k: each for k, each in keys.items() if each >= oldest}
