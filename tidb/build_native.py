"""Compile the kernels, each beside its source, where there is a C compiler.

Run it by `python -m sluice.tidb.build_native`. A kernel is a folder `kernel` with a `compiled.c`,
and with the same in Python, or nothing, in its place. `bin/setup` runs this, and hatch_build.py for
a wheel. One file serves Python 3.11 and all that come after (abi3).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = (
    "etl/landing/extract/kernel",
    "etl/changes/formats/kernel",
    "etl/changes/masks/kernel",
    "pump_service/capture/kernel",
    "pump_service/kernel",
    "pump_service/store/kernel",
    "tidb/kernel",
)
SOURCE, NAME = "compiled.c", "_compiled.abi3.so"
_COMPILE_TIMEOUT_S = 300


def build(source: Path, target: Path) -> str:
    """Compile a kernel; return why that failed, "" if it didn't.

    The environment's CC and CFLAGS count, where they are set.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    flags = [
        "-O2",
        "-shared",
        "-fPIC",
        "-Werror=implicit-function-declaration",
        *shlex.split(os.environ.get("CFLAGS", "")),
    ]
    include = sysconfig.get_path("include")
    if not (Path(include) / "Python.h").exists():
        return f"{include} has no Python.h"
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    command = [*compiler, *flags, f"-I{include}", str(source), "-o", str(fresh)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False
        )
        if done.returncode:
            return done.stderr.strip() or f"{command[0]} failed"
        fresh.replace(target)  # a process that has the former one loaded keeps it
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"{command[0]} took longer than {_COMPILE_TIMEOUT_S} s"
    finally:
        fresh.unlink(missing_ok=True)
    return ""


def build_all() -> dict[str, str]:
    """Compile every kernel that has its source here.

    Return each kernel that failed, with the reason.
    """
    reasons = {
        kernel: build(ROOT / kernel / SOURCE, ROOT / kernel / NAME) for kernel in _with_source()
    }
    return {kernel: reason for kernel, reason in reasons.items() if reason}


def _with_source() -> Iterator[str]:
    return (kernel for kernel in KERNELS if (ROOT / kernel / SOURCE).exists())


def warning(failed: dict[str, str]) -> str:
    """Return one warning for all kernels that aren't compiled: effect, cause and remedy."""
    kernels_by_reason: dict[str, list[str]] = {}
    for kernel, reason in failed.items():
        kernels_by_reason.setdefault(reason, []).append(kernel)
    needed = f"gcc libc6-dev libpython{sys.version_info.major}.{sys.version_info.minor}-dev"
    return "\n".join(
        (
            (
                "setup: WARNING: kernels are not compiled: their slow pure-Python versions run, up"
                " to 12 times slower."
            ),
            (
                "setup:   No figure of docs/reference/performance/index.md holds for this"
                " installation."
            ),
            *(
                f"setup:   {reason} ({', '.join(kernels)})"
                for reason, kernels in kernels_by_reason.items()
            ),
            (
                f"setup:   As root: apt-get install --no-install-recommends {needed}; then:"
                " bin/setup --force"
            ),
            "",
        )
    )


if __name__ == "__main__":
    if failed := build_all():
        sys.stderr.write(warning(failed))
