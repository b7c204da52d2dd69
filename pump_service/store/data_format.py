"""Which format a pump's data directory has.

Value log and index are the original Pump's, which carry no version. A release that changes either, so that a release
before it would misread it or cut off what it takes for damage, first puts the file `.format` beside them: one line, a
whole number. Without the file, as in every directory of the original's, it is 1.
"""

from __future__ import annotations

from pathlib import Path

from sluice.pump_service.store.errors import NewerDataError

FORMAT = 1
FORMAT_FILE = ".format"


def refuse_newer(data_dir: Path) -> None:
    """Raises NewerDataError if this version doesn't read the directory, OSError. Nothing is changed."""
    path = data_dir / FORMAT_FILE
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return
    if not text.isdecimal() or int(text) > FORMAT:
        raise NewerDataError(
            f"{path} says that the value log and index have format {text[:20]!r}; this version of the pump reads"
            f" {FORMAT}",
            way_out=NewerDataError.way_out,
        )
