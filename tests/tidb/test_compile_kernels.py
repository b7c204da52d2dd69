"""What compiling the kernels reports where there is no compiler."""

import os
import subprocess
import sys

from sluice.tidb import build_native as compile_kernels


def test_without_a_compiler_one_warning_says_what_is_slow_and_which_command_helps(tmp_path):
    before = [
        (compile_kernels.ROOT / each / compile_kernels.NAME) for each in compile_kernels.KERNELS
    ]
    stamps = [each.stat().st_mtime_ns if each.exists() else None for each in before]
    done = subprocess.run(
        [sys.executable, "-m", "sluice.tidb.build_native"],
        cwd=compile_kernels.ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"CC": str(tmp_path / "no-compiler")},
        timeout=60,
    )
    assert done.returncode == 0, "the slow path is no error"
    assert done.stderr.count("WARNING") == 1
    assert "pure-Python" in done.stderr
    assert (
        "apt-get install --no-install-recommends gcc libc6-dev"
        f" libpython{'.'.join(map(str, sys.version_info[:2]))}-dev" in done.stderr
    )
    assert done.stderr.count("no-compiler") == 1, (
        "one reason stands once, however many kernels have it"
    )
    assert all(each in done.stderr for each in compile_kernels.KERNELS)
    assert [each.stat().st_mtime_ns if each.exists() else None for each in before] == stamps


def test_a_kernel_that_fails_for_a_reason_of_its_own_is_named_with_it():
    shown = compile_kernels.warning(
        {"a/kernel": "cc: no", "b/kernel": "cc: no", "c/kernel": "line 7: error"}
    )
    assert "cc: no (a/kernel, b/kernel)" in shown
    assert "line 7: error (c/kernel)" in shown
