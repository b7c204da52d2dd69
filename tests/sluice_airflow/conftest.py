"""A pipeline whose downstream is a savepoint file that tests move."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.relay import RelayLog, WindowRecord
from sluice.relay.archive import ArchiveFile, ArchiveSegment
from sluice.tidb.moments import parse_moment

CLUSTER_ID = 7


@dataclass(frozen=True)
class ShopPipeline:
    """The pipeline `shop` in a folder of pipelines; something is landed, nothing is applied."""

    folder: Path

    @property
    def pipelines(self) -> Path:
        return self.folder / "pipelines"

    def move_checkpoint(self, moment: str) -> int:
        """Have the downstream complete through a moment, as a Drainer would write it."""
        ts = parse_moment(moment)
        path = self.folder / "out" / "savepoint"
        fresh = path.with_suffix(".fresh")
        fresh.write_text(f"consistent = true\ncommitTS = {ts}\nschema-version = 1\n")
        fresh.replace(path)
        return ts


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShopPipeline:
    monkeypatch.delenv("SLUICE_CONFIG", raising=False)
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path / "pipelines"))
    return shop_pipeline(tmp_path)


def shop_pipeline(folder: Path, pipelines: str = "pipelines", more: str = "") -> ShopPipeline:
    for name in ("out", pipelines):
        (folder / name).mkdir(parents=True)
    (folder / pipelines / "shop.toml").write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "file://{folder}/log"\n'
        f'[downstream]\ntype = "file"\n[file]\ndir = "{folder}/out"\n{more}'
    )
    first = parse_moment("2026-11-20T00:00:00Z")
    RelayLog.open(f"file://{folder}/log").commit(
        WindowRecord(first, first + 1, CLUSTER_ID, "t", 0, 0, 0, 1)
    )
    return ShopPipeline(folder)


def archived_segment(lo: int, hi: int) -> ArchiveSegment:
    """A segment of an archive in which nothing was changed."""
    index = ArchiveFile("log/a.windows", 1, 1, 0)
    return ArchiveSegment(lo, hi, CLUSTER_ID, "t", 0, 1, 0, 0, 1, 0, None, index)
