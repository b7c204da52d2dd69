"""Compile a kernel for tests from the source that is here, whatever lies beside it."""

from __future__ import annotations

import shutil
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from sluice.tidb import build_native as compile_kernels


def compiled_kernel(folder: str, into: Path) -> Any:
    """The module of a kernel's folder, such as "tidb/kernel".

    Skips the test where there is no compiler.
    """
    target = into / compile_kernels.NAME
    reason = compile_kernels.build(compile_kernels.ROOT / folder / compile_kernels.SOURCE, target)
    if reason and (shutil.which("cc") is None or "no Python.h" in reason):
        pytest.skip(f"can't be compiled here: {reason}")
    assert reason == ""
    name = folder.replace("/", ".") + "._compiled"
    spec = spec_from_file_location(name, target, loader=ExtensionFileLoader(name, str(target)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
