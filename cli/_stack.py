"""Share options and signal handling between the commands of the one-machine stack."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from sluice.devstack import Stack

Command = Callable[..., Any]


def stack_of(ctx: click.Context) -> Stack:
    """Return the stack in the folder of `--home` or SLUICE_HOME, else the repository's."""
    from sluice.devstack import Stack

    home: str | None = ctx.obj
    return Stack(Path(home) if home else None)


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """End the block at SIGTERM and SIGHUP as at Ctrl-C, so that what it started is stopped.

    Once is enough: while stopping, further ones are ignored.
    """

    def interrupt(number: int, frame: object) -> NoReturn:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def recording_option(what: str) -> Callable[[Command], Command]:
    """Add the option `--recording`: the folder of a recording, as the argument `directory`.

    `what` it is for, and the default.
    """
    kind = click.Path(exists=True, file_okay=False, path_type=Path)
    return click.option("--recording", "directory", type=kind, help=what)
