"""A file system of its own that is soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """One of so many bytes in `folder`; the test is skipped where none can be mounted."""
    path = folder / "disk"
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("file systems can't be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
