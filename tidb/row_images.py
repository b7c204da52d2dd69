"""The rows before or after some changes, with a column decoded at its first use.

Applying net effects needs the key alone of most old images, and those new ones that are written in
the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SMALL_ROW_COUNT = 256
"""Up to this number of rows, all are decoded at once: to pick some costs more."""

Ints: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]


class RowImages(Mapping[str, pa.Array]):
    """Columns by name. Each is made once."""

    def __init__(self, names: Iterable[str], count: int) -> None:
        """Create the row images; `count`: of rows."""
        self._names: Mapping[str, object] = (
            names if isinstance(names, dict) else dict.fromkeys(names)
        )
        self._made: dict[str, pa.Array] = {}
        self.count = count

    def __getitem__(self, name: str) -> pa.Array:
        """Return all rows' values. Raises KeyError, and the row codec's errors."""
        if name not in self._made:
            if name not in self._names:
                raise KeyError(name)
            self._made[name] = self._make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def take(self, rows: Ints) -> RowImages:
        """Return the images at some places."""
        return _SelectedImages(self, rows)

    def some(self, name: str, rows: Ints) -> pa.Array:
        """Return a column of the rows at some places."""
        return self[name].take(pa.array(rows))

    def marks(self, name: str) -> Words | None:
        """Return words that differ only where rows differ in how this column was sent.

        None if there are none. A difference may mean nothing: a caller that needs certainty
        compares the values.
        """
        return None

    def _make(self, name: str) -> pa.Array:
        raise NotImplementedError


class DecodedImages(RowImages):
    """Images of columns that are decoded already."""

    def __init__(self, columns: Mapping[str, pa.Array], count: int) -> None:
        super().__init__(tuple(columns), count)
        self._made.update(columns)


class RawImages(RowImages):
    """Images of cells that were found in rows as they were sent."""

    def __init__(
        self,
        names: Sequence[str],
        count: int,
        make: Callable[[str, Ints | None], pa.Array],
        mark: Callable[[str], Words | None],
    ) -> None:
        """Create the raw images.

        `make`: a column of the rows at some places, which ascend, of all for None.
        """
        super().__init__(names, count)
        self._make_rows = make
        self._mark = mark

    def some(self, name: str, rows: Ints) -> pa.Array:
        if name in self._made or self.count <= _SMALL_ROW_COUNT or len(rows) == self.count:
            return super().some(name, rows)
        if (rows[1:] > rows[:-1]).all():
            return self._make_rows(name, rows)
        ascending, places = np.unique(rows, return_inverse=True)
        return self._make_rows(name, ascending).take(pa.array(places))

    def marks(self, name: str) -> Words | None:
        return self._mark(name)

    def _make(self, name: str) -> pa.Array:
        return self._make_rows(name, None)


class JoinedImages(RowImages):
    """Several images joined, then in another order: `order[i]` is the place of row i among them."""

    def __init__(self, pieces: Sequence[RowImages], order: Ints | None = None) -> None:
        names = [name for name in pieces[0] if all(name in piece for piece in pieces[1:])]
        self._pieces = pieces
        self._order = order
        self._begins = np.cumsum([0, *(piece.count for piece in pieces)])
        super().__init__(names, int(self._begins[-1]))

    def some(self, name: str, rows: Ints) -> pa.Array:
        if name in self._made or len(rows) == self.count:
            return super().some(name, rows)
        places = rows if self._order is None else self._order[rows]
        if self.count <= _SMALL_ROW_COUNT:
            return pa.concat_arrays([piece[name] for piece in self._pieces]).take(pa.array(places))
        owners = np.searchsorted(self._begins, places, side="right") - 1
        found, at = [], []
        for number, piece in enumerate(self._pieces):
            own = np.flatnonzero(owners == number)
            if len(own):
                found.append(piece.some(name, places[own] - self._begins[number]))
                at.append(own)
        if not found:
            return self._pieces[0].some(name, rows)
        return pa.concat_arrays(found).take(pa.array(np.argsort(np.concatenate(at))))

    def marks(self, name: str) -> Words | None:
        marks = [piece.marks(name) for piece in self._pieces]
        there = [mark for mark in marks if mark is not None]
        if len(there) < len(marks):
            return None
        whole: Words = np.concatenate(there)
        return whole if self._order is None else whole[self._order]

    def _make(self, name: str) -> pa.Array:
        whole = pa.concat_arrays([piece[name] for piece in self._pieces])
        return whole if self._order is None else whole.take(pa.array(self._order))


class _SelectedImages(RowImages):
    """Some rows of others."""

    def __init__(self, images: RowImages, rows: Ints) -> None:
        super().__init__(images._names, len(rows))
        self._images = images
        self._rows = rows

    def some(self, name: str, rows: Ints) -> pa.Array:
        if name in self._made or len(rows) == self.count:
            return super().some(name, rows)
        return self._images.some(name, self._rows[rows])

    def marks(self, name: str) -> Words | None:
        marks = self._images.marks(name)
        return None if marks is None else marks[self._rows]

    def _make(self, name: str) -> pa.Array:
        return self._images.some(name, self._rows)
