"""Cache the members of a JSON object as text.

Window after window has the same tables, of which there may be thousands. What was written or read
of one before needn't be converted or parsed again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["JsonMemberCache", "to_text"]

_MAX_CACHED_CHARACTERS = 16 * 2**20
"""Characters of the cached texts, in total."""
_DECODER = json.JSONDecoder()
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def to_text(value: Any) -> str:
    """Return JSON text in the form of records."""
    return _ENCODER.encode(value)


class JsonMemberCache:
    """The members that were last written or read, by name.

    Values that are read again are the same objects: no caller may change them.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, str]] = {}
        self._characters = 0

    def pieces(self, members: Mapping[str, Any]) -> list[str]:
        """Return the object's text, as `to_text` gives it, in pieces to be joined."""
        pieces = ["{"]
        for name, value in members.items():
            pieces += (self.member(name, value), ",")
        if members:
            pieces.pop()
        pieces.append("}")
        return pieces

    def member(self, name: str, value: Any) -> str:
        """Return one member's text."""
        known = self._known.get(name)
        if known is not None and known[0] is value:
            return known[1]
        text = f"{to_text(name)}:{to_text(value)}"
        self._remember(name, value, text)
        return text

    def read(self, text: str, at: int) -> tuple[dict[str, Any], int]:
        """Parse the object with its first member, or end, at this offset; return it and its end.

        The offset is behind the object's brace. Raises ValueError if it isn't written as `pieces`
        does it.
        """
        found: dict[str, Any] = {}
        if text.startswith("}", at):
            return found, at + 1
        while True:
            end = text.index('"', at + 1)
            name = text[at + 1 : end]
            if text[at] != '"' or not name.isdecimal() or name in found:
                raise ValueError("no id")
            known = self._known.get(name)
            if known is not None and text.startswith(known[1], at):
                found[name] = known[0]
                end = at + len(known[1])
            else:
                if not text.startswith(":", end + 1):
                    raise ValueError("no value")
                found[name], end = _DECODER.raw_decode(text, end + 2)
                self._remember(name, found[name], text[at:end])
            if text.startswith("}", end):
                return found, end + 1
            if not text.startswith(',"', end):
                raise ValueError("neither another member nor the end")
            at = end + 1

    def _remember(self, name: str, value: Any, text: str) -> None:
        known = self._known.get(name)
        if known is not None:
            self._characters -= len(known[1])
        if self._characters + len(text) > _MAX_CACHED_CHARACTERS:
            self._known.clear()
            self._characters = 0
        if isinstance(value, dict):  # other values are found by equality, not by identity
            self._known[name] = value, text
            self._characters += len(text)
        else:
            self._known.pop(name, None)
