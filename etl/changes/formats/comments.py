"""Make names and values safe in SQL comments."""

from __future__ import annotations

import re

__all__ = ["printable_ascii"]


def printable_ascii(text: str) -> str:
    """Text as one line of printable ASCII."""
    return re.sub(r"[^ -~]", lambda match: ascii(match[0])[1:-1], text)
