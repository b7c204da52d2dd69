"""Take moments on the command line: one type for every option and argument."""

from __future__ import annotations

import click

__all__ = ["MOMENT", "MOMENT_FORMS", "MomentType", "RelativeMoment", "empty_range"]

MOMENT_FORMS = (
    "a TSO, before:TSO for just before that commit, a time ago such as 20m, or a date-time such as"
    " 'yesterday 14:00 Europe/Berlin' (UTC without a zone)"
)
"""What a person may type, for help texts."""


class RelativeMoment(int):
    """A moment that depends on the clock, by this machine's; `text` is what was typed.

    `config_option` replaces it by the moment of the upstream's clock.
    """

    text: str


class MomentType(click.ParamType[int]):
    """A moment as people type it; the command gets its TSO.

    Raises MomentError, which ends with exit code 1, for what is no moment.
    """

    name = "moment"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        from sluice.tidb.moments import is_relative, parse_moment  # `--help` doesn't wait for it

        ts = parse_moment(value)
        if not is_relative(value):
            return ts
        relative = RelativeMoment(ts)
        relative.text = value
        return relative


MOMENT = MomentType()


def empty_range(since: int, until: int | None, last: int) -> click.UsageError:
    """Return the error of a range that nothing can lie in; `until` None: it wasn't typed.

    `last` (TSO): what has landed ends there.
    """
    from sluice.tidb import tso

    if until is not None:
        return click.UsageError(
            f"--since {tso.text(since)} is not before --until {tso.text(until)}"
        )
    return click.UsageError(
        f"--since {tso.text(since)}: nothing committed after it has landed; the newest is of"
        f" {tso.text(last)}"
    )
