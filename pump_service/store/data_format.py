"""Check which format a pump's data directory has.

Value log and index have the original Pump's format, which carries no version. A release that
changes either so that an older release would misread or cut it first writes the file `.format`
beside them: one line, a whole number. Without the file, as in every directory of the original's,
the format is 1.
"""

from __future__ import annotations

from pathlib import Path

from sluice.pump_service.store.errors import NewerDataError

FORMAT = 1
FORMAT_FILE = ".format"


def refuse_newer(data_dir: Path) -> None:
    """Raise NewerDataError if this version can't read the directory.

    Raises OSError. Changes nothing.
    """
    path = data_dir / FORMAT_FILE
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return
    if not text.isdecimal() or int(text) > FORMAT:
        raise NewerDataError(
            f"value log and index have format {text[:20]!r} by {path}; this version of the pump reads {FORMAT}",
            way_out=NewerDataError.way_out,
        )
