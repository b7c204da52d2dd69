"""Name what was probably meant: the nearest command, or the nearest value of an option."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

__all__ = ["Choice", "near"]


def near(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean find?`, "" if nothing is alike."""
    from difflib import get_close_matches

    by_folded = {each.casefold(): each for each in known}
    alike = get_close_matches(word.casefold(), by_folded, 2, 0.6)
    return f"; did you mean {' or '.join(by_folded[each] for each in alike)}?" if alike else ""


class Choice(click.Choice[str]):
    """One of some words; a mistyped one is answered with the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            alike = near(str(value), map(str, self.choices))
            raise click.BadParameter(f"{error.message.rstrip('.')}{alike}", ctx, param) from None
