"""Mask values of columns on their way downstream, by `mask` of `[[filter.columns]]`.

A column as rules shape it has its mask in `Column.mask`. Rows of the relay log are masked while
they are landed, or while a change set is built, in front of row rules (which select by other
columns), and copied rows before they become loads. What landing has masked, `Column.landed_mask`
names, and it isn't masked again. All that writes is behind that, so conflicts, updates and deletes
see masked values alone. What masks rows loads on first use: settings name masks, and need no Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.changes.masks.mask import (
    KEYED_KINDS,
    MASK_KINDS,
    Mask,
    by_column,
    by_refusal,
    key_refusal,
    landed_column,
    masked_column,
    masks_of,
    unlike,
)
from sluice.etl.changes.masks.mask_key import MaskKeyError, key_fingerprint, mask_key
from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.etl.changes.masks.encoded_rows import masked_changes, with_masked_rows
    from sluice.etl.changes.masks.values import masked_columns

__all__ = [
    "KEYED_KINDS",
    "MASK_KINDS",
    "Mask",
    "MaskKeyError",
    "by_column",
    "by_refusal",
    "key_fingerprint",
    "key_refusal",
    "landed_column",
    "mask_key",
    "masked_changes",
    "masked_column",
    "masked_columns",
    "masks_of",
    "unlike",
    "with_masked_rows",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "masked_changes": "sluice.etl.changes.masks.encoded_rows",
        "with_masked_rows": "sluice.etl.changes.masks.encoded_rows",
        "masked_columns": "sluice.etl.changes.masks.values",
    },
)
