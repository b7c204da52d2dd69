"""Read `[filter.mask]` and `mask` of `[[filter.columns]]`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.etl.changes.masks import KEYED_KINDS, MASK_KINDS, Mask
from sluice.etl.settings.rule_error import RuleError
from sluice.tidb.folded import folded

_SECTION = "[filter.mask]"
MASKED, CLEAR = "masked", "clear"
RELAY_LOG_VALUES = (MASKED, CLEAR)
"""What of masked columns the relay log and the archive hold; the first is the default."""
_SECTION_KEYS = ("key-env", "key-file", "relay-log")
_PLAIN_KINDS = tuple(
    kind for kind in MASK_KINDS if kind not in ("constant", "partial", "shift-days")
)
_MAX_KEPT_CHARS = 255
_MAX_SHIFT_DAYS = 36_500


@dataclass(frozen=True, slots=True)
class MaskSection:
    """`[filter.mask]`: the key's place, "" for none, and what is landed (RELAY_LOG_VALUES)."""

    key: str = ""
    relay_log: str = ""


def parse_mask_section(raw: object) -> MaskSection:
    """Return the section. Raises RuleError."""
    if not isinstance(raw, Mapping):
        raise RuleError(f"{_SECTION} must be a table")
    for key, value in raw.items():
        if key not in _SECTION_KEYS:
            raise RuleError(f"{_SECTION}: unknown key {key}; known are {', '.join(_SECTION_KEYS)}")
        if not isinstance(value, str) or not value:
            raise RuleError(f"{_SECTION} {key}: a text expected")
    if "key-env" in raw and "key-file" in raw:
        raise RuleError(f"{_SECTION}: either key-env or key-file is needed")
    if raw.get("relay-log", MASKED) not in RELAY_LOG_VALUES:
        raise RuleError(
            f"{_SECTION} relay-log = {raw['relay-log']!r}: one of"
            f" {', '.join(map(repr, RELAY_LOG_VALUES))} expected"
        )
    key = f"env:{raw['key-env']}" if "key-env" in raw else ""
    return MaskSection(
        key or (f"file:{raw['key-file']}" if "key-file" in raw else ""), raw.get("relay-log", "")
    )


def parse_masks(where: str, raw: object, section: MaskSection) -> tuple[tuple[str, Mask], ...]:
    """Return the masks of a rule by column. Raises RuleError."""
    if not isinstance(raw, Mapping):
        raise RuleError(f'{where} = {raw!r}: {{ column = "hash" }} expected')
    for name, count in Counter(map(folded, raw)).items():
        if count > 1:
            raise RuleError(f"{where}: {name} is there twice")
    return tuple((name, _mask(f"{where} {name}", value, section)) for name, value in raw.items())


def _mask(where: str, value: Any, section: MaskSection) -> Mask:
    if isinstance(value, str) and value in _PLAIN_KINDS:
        if value not in KEYED_KINDS:
            return Mask(value)
        return Mask(value, key=_key(where, value, section))
    if (
        isinstance(value, Mapping)
        and "shift-days" in value
        and value.keys() <= {"shift-days", "by"}
    ):
        days, by = value["shift-days"], value.get("by", "")
        if (
            isinstance(days, int)
            and not isinstance(days, bool)
            and 1 <= days <= _MAX_SHIFT_DAYS
            and isinstance(by, str)
            and (by or "by" not in value)
        ):
            return Mask("shift-days", str(days), _key(where, "shift-days", section), by)
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, argument),) = value.items()
        if (
            kind == "constant"
            and isinstance(argument, str | int)
            and not isinstance(argument, bool)
        ):
            return Mask(kind, str(argument))
        if (
            kind == "partial"
            and isinstance(argument, int)
            and not isinstance(argument, bool)
            and 0 <= argument <= _MAX_KEPT_CHARS
        ):
            return Mask(kind, str(argument))
    raise RuleError(
        f"{where} = {value!r}: one of {', '.join(map(repr, _PLAIN_KINDS))} expected, or {{ constant"
        ' = "text" }, { partial = 4 }, { shift-days = 365 } or { shift-days = 365, by = "column" }'
    )


def _key(where: str, kind: str, section: MaskSection) -> str:
    """Return the key's place. Raises RuleError if there is none."""
    if not section.key:
        raise RuleError(f"{where} = {kind!r} needs a key: key-env or key-file in {_SECTION}")
    return section.key
