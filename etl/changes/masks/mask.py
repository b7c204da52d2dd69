"""Describe how a column is masked, and refuse what a mask doesn't fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from sluice.etl.changes.masks.date_shift import DATED_KINDS
from sluice.etl.changes.masks.mask_key import MaskKeyError, key_fingerprint, mask_key
from sluice.etl.changes.masks.mask_number import INT_BITS, number_mask, number_range
from sluice.etl.changes.masks.mask_text import (
    MIN_HASH_DIGITS,
    MIN_KEY_HASH_DIGITS,
    TextMask,
    hash_width,
    text_mask,
)
from sluice.tidb.codec.column_value import to_datum
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.times import ZERO_DATE
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table

MASK_KINDS = ("null", "constant", "partial", "hash", "digits", "email", "shift-days")
KEYED_KINDS = frozenset({"hash", "digits", "email", "shift-days"})
_HASHED = frozenset({"hash", "email"})
_PLAIN_COLLATIONS = ("_bin", "_general_ci")
"""Collations that compare sign by sign, in which a digit equals nothing but itself."""
_UNICODE = frozenset({"utf8", "utf8mb4"})


@dataclass(frozen=True, slots=True)
class Mask:
    """How values of a column are masked. NULL stays NULL whatever the mask.

    `argument`: the text of a `constant`, the number of characters that `partial` keeps, or the
    most days of `shift-days`. `key`: the place of the key (`sluice.etl.changes.masks.mask_key`), ""
    for kinds without one. `by`: the upstream's name of the column whose value says how many days
    `shift-days` is, "" for as many in all rows.
    """

    kind: str
    argument: str = ""
    key: str = ""
    by: str = ""

    def to_text(self) -> str:
        """Return the text that `Column.mask` holds."""
        parts = [self.kind, self.argument, self.key, *([self.by] if self.by else [])]
        return json.dumps(parts, ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the inverse of `to_text`."""
        return cls(*json.loads(text))

    def landed_text(self) -> str:
        """Return the text that `Column.landed_mask` holds: the key is named by its fingerprint.

        Raises MaskKeyError.
        """
        return replace(self, key=key_fingerprint(self.key) if self.key else "").to_text()

    def __str__(self) -> str:
        """Return the kind and its argument, for people."""
        if self.kind == "shift-days":
            return f"shift-days {self.argument}{f' by {self.by}' if self.by else ''}"
        return f"{self.kind} {self.argument!r}" if self.argument else self.kind

    def of_texts(self, column: Column) -> TextMask:
        """Return the function that masks a value of a text column. Raises MaskKeyError."""
        return text_mask(self.kind, self.argument, self.key, column)

    def of_numbers(self, column: Column) -> Callable[[int], int]:
        """Return the function that masks a value of a whole-number column. Raises MaskKeyError."""
        return number_mask(self.key, column)

    def refusal(self, column: Column) -> str:
        """Return why the mask can't be used for a column, "" if it can; its key counts, too."""
        if (why := self.misfit(column)) or self.kind not in KEYED_KINDS:
            return why
        try:
            mask_key(self.key)
        except MaskKeyError as error:
            return str(error)
        return ""

    def misfit(self, column: Column) -> str:
        """Return why the mask doesn't fit the column's type or width, "" if it does."""
        if self.kind == "null":
            return "it is NOT NULL" if column.not_null else ""
        if self.kind == "constant":
            return self._constant_refusal(column)
        if self.kind == "shift-days":
            return _shift_refusal(column)
        if self.kind == "digits" and column.tp in INT_BITS:
            return ""
        if column.kind != "text":
            return f"it holds no text but {column.kind or 'values of an unknown type'}"
        if self.kind in _HASHED and (width := hash_width(column)) < MIN_HASH_DIGITS:
            return (
                f"it has room for {width} characters, and fewer than {MIN_HASH_DIGITS} hexadecimal"
                " digits are too few to tell values apart"
            )
        return ""

    def _constant_refusal(self, column: Column) -> str:
        text = self.argument
        if column.kind == "text":
            if not text.isascii() and column.charset not in _UNICODE:
                return f"its character set {column.charset} may lack some of {text!r}"
            if text != text.rstrip():
                return f"servers cut off the blank at the end of {text!r}"
            width = column.flen if column.flen >= 0 else 255
            return "" if len(text.encode()) <= width else f"it has room for {width} characters"
        if column.kind not in ("int", "date", "enum"):
            return f"a constant can't be of its type, {column.kind or 'unknown'}"
        try:
            value = constant_value(self, column)
            to_datum(column, value)
        except (CodecError, ValueError):
            return f"{text!r} is no value of it ({column.kind})"
        if column.kind == "int":
            low, high = number_range(column)
            return "" if low <= value <= high else f"it holds numbers from {low} to {high}"
        return "" if value or column.kind != "enum" else "an ENUM has no element ''"


def _shift_refusal(column: Column) -> str:
    if column.kind not in DATED_KINDS:
        return f"it holds no dates but {column.kind or 'values of an unknown type'}"
    for default in (column.default, column.origin_default):
        text = default.decode() if isinstance(default, bytes) else default or ZERO_DATE
        if not text.startswith((ZERO_DATE, "CURRENT_TIMESTAMP", "current_timestamp")):
            return "it has a default that is a date, which belongs to no row"
    return ""


def key_refusal(mask: Mask, column: Column, chars: int) -> str:
    """Return why masked values of a unique key's column may be alike, "" if they can't be.

    `chars`: how many characters of it are in the key, below 0 for all.
    """
    if mask.kind == "null":
        return ""  # a unique key takes any number of them
    if mask.kind == "hash" and column.kind == "text":
        digits = min(hash_width(column), chars if chars >= 0 else hash_width(column))
        if digits < MIN_KEY_HASH_DIGITS:
            return (
                f"{digits} hexadecimal digits of a hash may be alike, and {MIN_KEY_HASH_DIGITS}"
                " aren't"
            )
        return ""
    if mask.kind == "digits":
        if column.kind == "int":
            return ""
        if chars >= 0:
            return "it has a part of the column alone, which may be alike in two values"
        if not column.collate.endswith(_PLAIN_COLLATIONS):
            return f"{column.collate} may hold other signs for digits"
        return ""
    return f"{mask} may make one of two values"


def by_column(table: Table, column: Column) -> Column | None:
    """Return the column whose values say by how many days a mask shifts; None for no such mask."""
    if not column.mask or not (by := Mask.from_text(column.mask).by):
        return None
    return _upstream_column(table, by)


def _upstream_column(table: Table, name: str) -> Column | None:
    """Return the column that the upstream has under a name, in any case."""
    wanted = folded(name)
    return next((each for each in table.columns if folded(each.source_name) == wanted), None)


def by_refusal(table: Table, mask: Mask) -> str:
    """Return why the column that a mask names can't say by how many days it shifts, "" if it can.

    `table`: without the columns that rules leave out.
    """
    if not mask.by:
        return ""
    found = _upstream_column(table, mask.by)
    if found is None or found.hidden or found.computed:
        return f"the table has no column {mask.by}"
    if not found.public:
        return f"column {mask.by} isn't downstream"
    if found.generated:
        return f"column {mask.by} is generated"
    if found.kind not in ("int", "text"):
        return f"column {mask.by} holds neither whole numbers nor text"
    return ""


def constant_value(mask: Mask, column: Column) -> Any:
    """Return the constant as decoded values of the column are. Raises ValueError."""
    return int(mask.argument) if column.kind == "int" else mask.argument


def has_unmasked(table: Table) -> bool:
    """Return whether values of a table, as rules shape it, are to be masked yet."""
    return any(column.mask and not column.landed_mask for column in table.columns)


def unmasked_yet(table: Table) -> Table:
    """Return a table without the masks that landing has put on its columns' values already."""
    if not table.landed_masks:
        return table
    columns = tuple(replace(c, mask="") if c.landed_mask else c for c in table.columns)
    return replace(table, columns=columns)


def masks_of(table: Table) -> dict[str, str]:
    """Return the masks of a table as rules shape it, by column."""
    return {column.name: column.mask for column in table.columns if column.mask}


def masked_column(column: Column, mask: Mask) -> Column:
    """Return the column with its mask and masked defaults.

    A row that was written before its column holds the masked default then, as the row downstream
    does, which got it by the DDL. A constant becomes the default of a column without one that can't
    be NULL: a DDL that adds it fills it with that.
    """
    if mask.kind == "null":
        found = replace(column, default=None, default_is_expr=False, origin_default=None)
    elif mask.kind == "shift-days":  # there is no default but NULL, the zero date and the clock
        found = column
    elif mask.kind == "constant":
        has_one = column.default is not None or column.not_null
        origin = column.origin_default is not None or column.not_null
        found = replace(
            column,
            default=mask.argument if has_one else None,
            default_is_expr=False,
            origin_default=mask.argument if origin else None,
        )
    else:
        change = _digits_of_default(mask, column) if column.kind == "int" else mask.of_texts(column)
        found = replace(
            column,
            default=column.default if column.default_is_expr else _masked(change, column.default),
            origin_default=_masked(change, column.origin_default),
        )
    return replace(found, mask=mask.to_text())


def _digits_of_default(mask: Mask, column: Column) -> TextMask:
    change = mask.of_numbers(column)
    return lambda default: b"%d" % change(int(default))


def landed_column(column: Column) -> Column:
    """Return a masked column (`masked_column`) as a window record describes it.

    Raises MaskKeyError.
    """
    return replace(column, mask="", landed_mask=Mask.from_text(column.mask).landed_text())


def _masked(change: TextMask, default: bytes | str | None) -> bytes | str | None:
    if default is None:
        return None
    raw = default.encode("utf-8", "surrogateescape") if isinstance(default, str) else default
    return change(raw).decode("utf-8", "surrogateescape")


def unlike(old: Column, new: Column) -> str:
    """Return why values masked as `old` aren't those masked as `new`, "" if they are.

    Both are the same column before and after a DDL, as rules shape them.
    """
    if old.mask != new.mask:
        return "one of the two isn't masked, or otherwise"
    if not old.mask:
        return ""
    mask = Mask.from_text(old.mask)
    if mask.kind == "null":
        return ""
    if old.kind != new.kind:
        return f"its type was {old.kind}"
    if mask.kind in ("constant", "shift-days"):
        return ""
    if old.kind == "int":
        held, holds = number_range(old), number_range(new)
        return "" if held == holds else f"it held numbers from {held[0]} to {held[1]}"
    if old.charset != new.charset and not {old.charset, new.charset} <= _UNICODE:
        return f"its character set was {old.charset}"
    if mask.kind in _HASHED and hash_width(old) != hash_width(new):
        return f"it had room for {hash_width(old)} hexadecimal digits"
    if -1 < new.flen < old.flen:
        return "it becomes shorter"
    return ""
