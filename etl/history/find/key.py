"""Find the rows with a key: its values, as a person types them.

    7
    0x00ff
    'Berlin, Mitte', 2026-11-22

Values stand in the order of the table's key, separated by commas; the last columns may be left out.
In quotes a comma is one. Tables without a key have no such rows.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

import numpy as np

from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.history.errors import ConditionError
from sluice.etl.history.find._values import comparable, constant_for
from sluice.etl.history.find.condition import ChangeRows, Images
from sluice.tidb.schema import Column

_MAX_CHARACTERS = 10_000
_HEX = re.compile(r"0[xX](?:[0-9a-fA-F]{2})+\Z")


class KeyCondition:
    """A parsed key, `text`.

    A change fits if the row has the key before it or after it. Raises ConditionError.
    """

    columns: frozenset[str] = frozenset()
    """It names none."""

    def __init__(self, text: str) -> None:
        if len(text) > _MAX_CHARACTERS:
            raise ConditionError(
                f"a key of {len(text)} characters; at most {_MAX_CHARACTERS} are read"
            )
        self._values = next(csv.reader([text.strip()], quotechar="'", skipinitialspace=True), [])
        if not self._values:
            raise ConditionError("an empty key")

    def fits(self, rows: ChangeRows) -> np.ndarray:
        """Return which changes fit (bool, one a change)."""
        key = lookup_key_columns(rows.table)[: len(self._values)]
        found = np.zeros(rows.count, bool)
        if len(key) < len(self._values):
            return found
        try:
            wanted = [
                constant_for(column, _constant(value))
                for column, value in zip(key, self._values, strict=True)
            ]
        except ConditionError:  # no value of that column: it has no such row
            return found
        for images in (rows.old, rows.new):
            if images is not None:
                found |= _equal(key, images, wanted)
        return found


def _constant(value: str) -> str | bytes:
    return bytes.fromhex(value[2:]) if _HEX.match(value) else value


def _equal(key: Sequence[Column], images: Images, wanted: Sequence[object]) -> np.ndarray:
    each = [
        np.array([value == one for value in comparable(column, images[column.name])], bool)
        for column, one in zip(key, wanted, strict=True)
    ]
    both: np.ndarray = np.logical_and.reduce(each)
    return both
