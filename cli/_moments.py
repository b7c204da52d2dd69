"""Take moments on the command line: one type for every option and argument."""

from __future__ import annotations

import click

__all__ = ["MOMENT", "MOMENT_FORMS", "MomentType"]

MOMENT_FORMS = (
    "a TSO, before:TSO for just before that commit, a time ago such as 20m, or a date-time such as"
    " 'yesterday 14:00 Europe/Berlin' (UTC without a zone)"
)
"""What a person may type, for help texts."""


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
        from sluice.tidb.moments import parse_moment  # `--help` doesn't wait for it

        return parse_moment(value)


MOMENT = MomentType()
