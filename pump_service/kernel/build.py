"""Compiles the kernel beside its source, where there is a C compiler: `python -m pump_service.kernel.build`.

`bin/setup` runs it, and hatch_build.py for a wheel. One file serves Python 3.11 and all that come after (abi3).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAME = "_compiled.abi3.so"
_TIMEOUT_S = 300


def build(source: Path = HERE / "compiled.c", target: Path = HERE / NAME) -> str:
    """Why it can't be compiled; "" if it was. The environment's CC and CFLAGS count, where they are set."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    flags = ["-O2", "-shared", "-fPIC", *shlex.split(os.environ.get("CFLAGS", ""))]
    include = sysconfig.get_path("include")
    if not (Path(include) / "Python.h").exists():
        return f"{include} has no Python.h"
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    command = [*compiler, *flags, f"-I{include}", str(source), "-o", str(fresh)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode:
            return done.stderr.strip() or f"{command[0]} failed"
        fresh.replace(target)  # a process that has the former one loaded keeps it
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"{command[0]} took longer than {_TIMEOUT_S} s"
    finally:
        fresh.unlink(missing_ok=True)
    return ""


if __name__ == "__main__":
    reason = build()
    sys.stdout.write(f"{reason}: the pump's kernel is taken in Python, which is slower\n" if reason else "")
