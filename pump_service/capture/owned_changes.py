"""Leave out of captured transactions what belongs to other shares of the tables.

A region may hold tables of several shares, so TiKV also sends rows of others. What is left must
depend on the share alone, never on where regions begin: replicas of a share hold equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sluice.pump_service.capture.transactions import CapturedTransaction, KeyChange
from sluice.tidb.table_shares import ID_BYTES, Share


class OwnedChanges:
    """Hold which keys a share has."""

    def __init__(self, share: Share) -> None:
        self._owns = _OwnedTables(share)
        self._is_whole = share.is_whole

    def of(self, transactions: Iterator[CapturedTransaction]) -> Iterator[CapturedTransaction]:
        """Yield the transactions that changed keys of the share, with these keys alone."""
        if self._is_whole:
            yield from transactions
            return
        owns = self._owns
        for each in transactions:
            changes: Iterable[KeyChange]
            if isinstance(each.changes, list):
                changes = [change for change in each.changes if owns[change.key[:ID_BYTES]]]
                is_empty = not changes
            else:
                changes = _Filtered(each.changes, owns)
                is_empty = next(iter(changes), None) is None
            if not is_empty:
                yield each._replace(changes=changes)


class _OwnedTables(dict[bytes, bool]):
    """Find by a key's beginning whether the share has it."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        self._share = share

    def __missing__(self, prefix: bytes) -> bool:
        found = self._share.owns_key(prefix)
        if prefix[:1] == b"t":
            self[prefix] = found
        return found


class _Filtered:
    """Iterate over those of a large transaction's changes, as often as needed."""

    def __init__(self, changes: Iterable[KeyChange], owns: _OwnedTables) -> None:
        self._changes, self._owns = changes, owns

    def __iter__(self) -> Iterator[KeyChange]:
        owns = self._owns
        return (change for change in self._changes if owns[change.key[:ID_BYTES]])
