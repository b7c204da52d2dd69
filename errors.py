"""The root of every error that leaves a package, and the two facts that its receiver needs.

`transient` states whether trying again, without any action by people, may help: the loops of
landing and applying, the command line's exit code and Airflow's tasks use it and nothing else.
`hint` is what people can do.

`CheckResult` is what `sluice doctor`, `capture --check` and `takeover --check` find: an error that
is listed with the others instead of raised.

This package lies below all others and imports none. Errors of other libraries become ours at the
edge of the package that talks to them; what the operating system reports may come through as
OSError, and `ours` translates it.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "FAIL",
    "OK",
    "WARN",
    "CheckResult",
    "DefectError",
    "MachineError",
    "RequestError",
    "Signal",
    "SluiceError",
    "ours",
]


_SENTENCE_ENDS = (".", "?", "!")


class SluiceError(Exception):
    """Something went wrong: `str()` is what failed, for what, and the hint.

    A subclass sets `transient` and `hint` for all of its errors; one error may have its own. Its
    own hint is shown behind the message, unless the message has it already; that of its class is
    general, and not repeated there.
    """

    transient: bool = False
    """Trying again may help without any action by people."""
    hint: str = ""
    """Action for people. Of a transient error: what helps if it lasts."""
    exit_code: ClassVar[int] = 4
    """Exit code of the command line if the error isn't transient."""
    _shown = ""

    def __init__(
        self, message: str = "", *details: object, hint: str = "", transient: bool | None = None
    ) -> None:
        super().__init__(message, *details)
        self._shown = hint
        if hint:
            self.hint = hint
        if transient is not None:
            self.transient = transient

    def __str__(self) -> str:
        message = str(self.args[0]) if self.args else ""
        if self._shown in message:
            return message
        return f"{message}{' Hint:' if message.endswith(_SENTENCE_ENDS) else ';'} {self._shown}"


class RequestError(SluiceError):
    """A request can't be executed, and nothing has changed.

    Another command, or other settings, may work.
    """

    hint = "correct what it names, and try again"
    exit_code = 1


class MachineError(SluiceError):
    """The operating system refused something: a file, a disk, a connection, memory."""

    transient = True
    hint = "look at the disk, the rights or the network that it names"


class DefectError(SluiceError):
    """Something unforeseen; its cause has the stack trace."""

    hint = (
        "this is a defect of Sluice: report it with the stack trace in the log, then let the task"
        " run again; nothing was lost"
    )
    exit_code = 1


class Signal(Exception):
    """Control flow by an exception. A room catches it before it returns to its callers."""


_BY_NUMBER = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "raise the quota, or make room",
    errno.EACCES: "let the user that runs this read and write there",
    errno.EPERM: "let the user that runs this read and write there",
    errno.EROFS: "make the file system writable again",
    errno.EMFILE: "raise the limit of open files (LimitNOFILE of the service)",
}


def ours(error: BaseException) -> SluiceError:
    """Return an error as one of ours: itself if it is, a translated OSError, else a defect.

    It has the original for its cause.
    """
    if isinstance(error, SluiceError):
        return error
    if isinstance(error, OSError):
        known: SluiceError = MachineError(str(error) or type(error).__name__)
        known.hint = _BY_NUMBER.get(error.errno or 0, MachineError.hint)
    elif isinstance(error, MemoryError):
        known = MachineError(f"out of memory: {error}")
        known.hint = (
            "give it more memory, or let it take less at once: [window] max-bytes, [apply]"
            " max-bytes"
        )
    else:
        known = DefectError(f"{type(error).__name__}: {error}")
    known.__cause__ = error
    return known


OK, WARN, FAIL = "ok", "warn", "fail"
"""States of a check. WARN: it works, but something is short or will differ."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Hold what one check found.

    `area`: the part that was checked, as "downstream"; `state`: OK, WARN or FAIL; `hint`: what to
    do, "" if all is well.
    """

    area: str
    state: str
    text: str
    hint: str = ""
