"""Build hook: compiles the .proto files before a wheel or an editable install is made."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProtobufBuildHook(BuildHookInterface):
    """Runs upstream/genproto.py, by file, because the package itself isn't importable while it is being built."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        upstream = Path(self.root) / "upstream"
        spec = importlib.util.spec_from_file_location("_sluice_genproto", upstream / "genproto.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.generate(upstream)
