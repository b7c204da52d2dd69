"""Spare short commands the search for garbage."""

from __future__ import annotations

import gc

import click

__all__ = ["collect_no_garbage"]


def collect_no_garbage(ctx: click.Context) -> None:
    """Let no garbage be collected until the command ends.

    Imports and a list of ten thousand tables allocate so much that it takes a tenth of the time.
    """
    gc.disable()
    ctx.call_on_close(_collect_again)


def _collect_again() -> None:
    """Let garbage be collected again, without a search through all that was made meanwhile."""
    gc.freeze()
    gc.enable()
    gc.unfreeze()
