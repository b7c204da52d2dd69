"""Compile the .proto files before a wheel or an editable install is made: a build hook.

It gives a wheel what only it needs: the versions that the tests ran with, Airflow's settings, and
a recording to try it with.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RECORDING = "tests/recordings/shop"
"""The recording that `sluice run` and `sluice up` play by default.

The wheel has it as ``devstack/recordings/shop``.
"""
OF_A_RECORDING = (
    "recording.json",
    "binlogs.bin.gz",
    "tikv-meta.jsonl.gz",
    "snapshots.json",
    "snapshots",
)
"""Files of a recording that are played and compared; the rest is for tests."""


class SluiceBuildHook(BuildHookInterface):
    """Runs tidb/genproto.py, by file.

    The package itself isn't importable while it is being built.
    """

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        tidb = root / "tidb"
        _module_at(tidb / "genproto.py").generate(tidb)
        if self.target_name == "wheel" and version == "standard":
            self._add_to_wheel(root, build_data["force_include"])
            if os.environ.get("SLUICE_COMPILED") == "1":
                self._add_kernels(root, build_data)

    def _add_to_wheel(self, root: Path, included: dict[str, str]) -> None:
        if (root / RECORDING).is_dir():  # an image is built without
            for name in OF_A_RECORDING:
                included[str(root / RECORDING / name)] = f"sluice/devstack/recordings/shop/{name}"
        self._scratch = tempfile.TemporaryDirectory()
        included[str(root / "airflow.cfg")] = "sluice/devstack/airflow.cfg"
        constraints = Path(self._scratch.name) / "constraints.txt"
        constraints.write_text(
            tested_versions((root / "uv.lock").read_text(encoding="utf-8")), encoding="utf-8"
        )
        included[str(constraints)] = "sluice/devstack/constraints.txt"

    def _add_kernels(self, root: Path, build_data: dict[str, Any]) -> None:
        """Add the compiled kernels: the wheel is for machines of this kind only."""
        compiling = _module_at(root / "tidb" / "build_native.py")
        for kernel in compiling.KERNELS:
            compiled = Path(self._scratch.name) / kernel.replace("/", ".")
            failure = compiling.build(root / kernel / compiling.SOURCE, compiled)
            if failure:
                raise RuntimeError(f"SLUICE_COMPILED=1, but {kernel} can't be compiled: {failure}")
            build_data["force_include"][str(compiled)] = f"sluice/{kernel}/{compiling.NAME}"
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"cp311-abi3-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_scratch"):
            self._scratch.cleanup()


def _module_at(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"_sluice_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tested_versions(lock: str) -> str:
    """Return the contents of uv.lock as a constraints file for pip and uv.

    It has all that Sluice needs, its extras too, a line for each version, with a marker where
    another Python gets another one.
    """
    packages: dict[str, list[dict[str, Any]]] = {}
    for package in tomllib.loads(lock)["package"]:
        packages.setdefault(package["name"], []).append(package)
    wanted, waiting = set(), ["sluice"]
    while waiting:
        name = waiting.pop()
        if name in wanted:
            continue
        wanted.add(name)
        for package in packages[name]:
            needed = [
                package.get("dependencies", []),
                *package.get("optional-dependencies", {}).values(),
            ]
            waiting += [each["name"] for group in needed for each in group]
    lines = []
    for name in sorted(wanted - {"sluice"}):
        for package in packages[name]:
            marker = " or ".join(package.get("resolution-markers", []))
            lines.append(f"{name}=={package['version']}{f' ; {marker}' if marker else ''}\n")
    return "# The versions that this release of Sluice was tested with.\n" + "".join(lines)
