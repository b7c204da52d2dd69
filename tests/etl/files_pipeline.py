"""A pipeline from a registry in etcd into a folder of files, as all who look at pipelines are shown
one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.etl.settings import Settings, load_settings
from sluice.relay import RelayLog


@pytest.fixture
def files_config(tmp_path: Path, etcd_url: str) -> Path:
    """Its settings' file, ``shop.toml``. Nothing is landed, and no pump is registered."""
    (tmp_path / "out").mkdir()
    path = tmp_path / "shop.toml"
    path.write_text(
        f'[upstream]\npd-urls = "{etcd_url}"\n[relay]\nurl = "file://{tmp_path}/relay"\n'
        f'[downstream]\ntype = "file"\n[file]\ndir = "{tmp_path}/out"\n'
    )
    return path


@pytest.fixture
def files_settings(files_config: Path) -> Settings:
    """Its settings."""
    return load_settings(files_config)


@pytest.fixture
def files_relay(files_settings: Settings) -> RelayLog:
    """Its relay log."""
    return files_settings.open_relay()
