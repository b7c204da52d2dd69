"""The lake of an archive at the command line: which files count, and an Iceberg catalog's table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sluice.cli import main
from sluice.etl.display_units import counted
from sluice.etl.history.archive import compact
from sluice.etl.history.archive.archiver import Archiver
from sluice.etl.history.lake.iceberg import open_catalog
from sluice.relay.archive import Archive
from tests.etl.history.archive.archiving import LocalJobs, settings_of
from tests.etl.relay_from_recording import RECORDINGS, land


def sluice(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """The exit code, and what was printed to standard output and error."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


@pytest.mark.slow
def test_files_that_count_hold_each_change_once_and_go_to_a_catalog_again_after_a_compaction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    relay = land(RECORDINGS / "shop", f"file://{tmp_path}/relay", 2000)
    settings = settings_of(relay.url)
    jobs: Any = LocalJobs(settings)
    archiver = Archiver(settings, jobs=jobs, segment_bytes=1)
    archiver.through()
    archiver.close()
    config = tmp_path / "sluice.toml"
    config.write_text(
        f'[upstream]\npd-urls = "unused"\n[relay]\nurl = "{relay.url}"\n[downstream]\nhost ='
        ' "nowhere"\n'
    )
    last = relay.last()
    assert last is not None
    changes = relay.read(relay.windows(0)).filter(
        pc.field("table_id") == _id(settings.archive_url, "bank.account")
    )
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}",
    }
    asked: tuple[object, ...] = (
        "archive",
        "export",
        "bank.account",
        "--as",
        "lake.account",
        "--config",
        config,
    )
    asked += ("--catalog", "default")
    for key, value in catalog.items():
        asked += ("--property", f"{key}={value}")
    expected = sorted(set(changes["commit_ts"].to_pylist()))
    counts = []
    for _ in range(2):
        code, said, _ = sluice(capsys, "archive", "files", "bank.account", "--config", config)
        files = said.split()
        assert code == 0 and all(
            file.startswith(f"{relay.url}/archive/lake/bank.account/") for file in files
        )
        tables = [pq.ParquetFile(file.removeprefix("file://")).read() for file in files]
        images = [op for table in tables for op in table["_op"].to_pylist()]
        assert sum(op != "update_preimage" for op in images) == changes.num_rows
        assert (
            sorted({ts for table in tables for ts in table["_commit_ts"].to_pylist()}) == expected
        )
        code, said, _ = sluice(capsys, *asked)
        done = f"{counted(len(files), 'file')}, {len(files)} added"
        assert code == 0 and f"lake.account: {done}" in said
        rows = open_catalog("default", catalog).load_table("lake.account").scan().to_arrow()
        assert rows.num_rows == len(images)
        counts.append(len(files))
        compact(settings, jobs=LocalJobs(settings, settings.archive_url))
    assert counts[1] < counts[0]


def test_files_of_a_range_are_those_that_may_hold_it_and_a_table_without_any_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    relay = land(RECORDINGS / "types", f"file://{tmp_path}/relay")
    settings = settings_of(relay.url)
    archiver = Archiver(settings, jobs=LocalJobs(settings))  # type: ignore[arg-type]
    archiver.through()
    archiver.close()
    config = tmp_path / "sluice.toml"
    config.write_text(
        f'[upstream]\npd-urls = "unused"\n[relay]\nurl = "{relay.url}"\n[downstream]\nhost ='
        ' "nowhere"\n'
    )
    last = relay.last()
    assert last is not None
    code, said, _ = sluice(capsys, "archive", "files", "types.times", "--json", "--config", config)
    (file,) = json.loads(said)
    assert (
        code == 0
        and file["table"] == "times"
        and (tmp_path / "relay" / "archive" / file["path"]).is_file()
    )
    assert sluice(
        capsys, "archive", "files", "types.times", "--since", last.hi, "--config", config
    )[:2] == (1, "")
    code, said, err = sluice(capsys, "archive", "files", "types.tims", "--config", config)
    assert (code, said) == (1, "") and "no file of types.tims" in err
    assert "did you mean types.times" in err
    code, _, error = sluice(
        capsys, "archive", "export", "types.nowhere", "--config", config, "--property", "type=sql",
        "--property", f"uri=sqlite:///{tmp_path}/c.db", "--property", f"warehouse=file://{tmp_path}",
    )  # fmt: skip
    assert code == 1 and "the lake has no files for types.nowhere" in error


def _id(url: str, table: str) -> int:
    archive = Archive.open(url)
    first = archive.first()
    assert first is not None
    files = [file for segment in archive.segments(first.lo) for file in segment.lake]
    return next(file.table_id for file in files if f"{file.schema}.{file.table}" == table)
