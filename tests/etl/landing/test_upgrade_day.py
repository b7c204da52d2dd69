"""The day of the upgrade: a pipeline goes from binlogs to TiKV's changes, as the how-to says.

All processes are real, each kind is killed on the way, and TiDB never stops writing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.relay import RelayLog
from tests.cli.typed import typed
from tests.etl.captured_site import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
def test_a_pipeline_goes_over_from_binlogs_to_tikv_while_tidb_writes_and_processes_die(
    site: Site,
) -> None:
    site.pump("binlogs")
    site.wait(lambda: "online" in typed("pumps", "list", "--config", site.config).stdout)
    site.write(binlogs=True)
    site.land()
    site.grows()
    assert site.is_read("binlogs")

    checked = typed("capture", "--check", "--json", "--config", site.config)
    assert checked.returncode == 0, checked.stdout
    site.pump("capture", captures=True)
    site.kill("land")
    site.land()
    site.wait(lambda: site.is_read("captured changes"), ("land", "capture"))
    site.kill("capture")
    site.pump("capture", captures=True)
    site.grows()

    site.write(binlogs=False)
    site.grows()
    offline = typed("pumps", "offline", "binlogs", "--config", site.config)
    assert offline.returncode == 0, offline.stdout + offline.stderr
    site.wait(lambda: site.processes["binlogs"].poll() is not None, ("binlogs",))
    for victim in ("capture", "land"):
        site.kill(victim)
        site.land() if victim == "land" else site.pump("capture", captures=True)
        site.grows()

    site.ask("/stop", now=True)
    site.wait(lambda: site.ask("/workload")["state"] == "done")
    ts = int(site.ask("/status")["newest_commit_ts"])
    relay = RelayLog.open(f"file://{site.folder}/relay")
    site.wait(lambda: (last := relay.last()) is not None and last.hi >= ts, ("land", "capture"))
    windows = list(relay.windows(0))
    sources = [window.is_captured for window in windows if window.transactions]
    assert sources == sorted(sources) and set(sources) == {False, True}, "binlogs, then captured"
    assert sorted(site.landed()) == list(range(1, site.committed() + 1))
    changes = relay.read(windows)
    pairs = set(zip(changes["commit_ts"].to_pylist(), changes["start_ts"].to_pylist()))
    assert len(pairs) == site.committed(), "each transaction has its two timestamps"
    assert json.loads(checked.stdout)["results"]
