"""A small dump of four of the recorded tables, among them one without a key and one with a foreign
key.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.etl.copy.copying import RECORDING

TABLES = (
    "bank.child.",
    "bank.log_nopk.",
    "bank.parts.",
    "bank.empty_one",
    "bank.account.",
    "bank.ledger.",
)


def small_dump(folder: Path) -> Path:
    """The dump `dump-csv-plain` with its files cut into two."""
    folder.mkdir()
    for file in sorted((RECORDING / "dump-csv-plain").iterdir()):
        shutil.copy(file, folder)
    for name in ("bank.log_nopk", "bank.child"):
        whole = folder / f"{name}.000000000.csv"
        header, *lines = whole.read_bytes().splitlines(keepends=True)
        whole.write_bytes(header + b"".join(lines[:300]))
        (folder / f"{name}.000000005.csv").write_bytes(header + b"".join(lines[300:]))
    return folder
