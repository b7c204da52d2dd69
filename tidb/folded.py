"""TiDB's comparison of names: by their lower case, rune by rune."""

from __future__ import annotations


def folded(name: str) -> str:
    """Return what two names have in common that TiDB takes for one.

    Python's `lower` looks at neighbours (a sigma at the end of a word) and may give two characters
    for one.
    """
    return name.lower() if name.isascii() else "".join([char.lower()[0] for char in name])
