"""The day of the upgrade: a pipeline goes from binlogs to TiKV's changes, as the how-to says.

All processes are real, each kind is killed on the way, and TiDB never stops writing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from sluice.relay import RelayLog
from sluice.tidb.rows import decode_inserts
from tests.cli.typed import typed
from tests.etl.story import table
from tests.pump_service.pumpkit import Etcd, free_port

TIMEOUT_S = 90
TRANSACTIONS = table(1, "txn", "id bigint", "note varchar(32)", primary="id")
_LAND = (
    "import sys; from sluice.etl import load_settings, run_land;"
    " run_land(load_settings(sys.argv[1]), start_ts=0, run_seconds=600)"
)


class Site:
    """etcd, the stand-in cluster, pumps and landing as processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.etcd = Etcd(folder / "etcd")
        self.pd, self.control = free_port(), free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.config = folder / "sluice.toml"
        self.config.write_text(
            f'[upstream]\npd-urls = "http://127.0.0.1:{self.pd}"\n'
            f'[relay]\nurl = "file://{folder}/relay"\n'
            f'[downstream]\ntype = "file"\n[file]\ndir = "{folder}"\n'
            '[spark]\nremote = "sc://127.0.0.1:1"\n[window]\nidle-interval-ms = 100\n'
        )
        self.start(
            "cluster", "sluice.devstack.tidb", "--capture", "--min-ts-interval", "0.1",
            "--etcd", f"http://127.0.0.1:{self.etcd.port}", "--listen", f"127.0.0.1:{self.pd}",
            "--control", f"127.0.0.1:{self.control}",
        )  # fmt: skip
        self.wait(lambda: self.ask("/status")["state"] == "idle")

    def start(self, name: str, module: str, *words: str) -> None:
        command = ("-c", _LAND) if module == "land" else ("-m", module)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *command, *words], stdout=log, stderr=log
            )

    def pump(self, name: str, *, captures: bool = False) -> None:
        config = self.folder / f"{name}.toml"
        if not config.exists():
            config.write_text(
                f'addr = "127.0.0.1:{free_port()}"\npd-urls = "http://127.0.0.1:{self.pd}"\n'
                f'data-dir = "{self.folder / name}"\nnode-id = "{name}"\n'
                'heartbeat-interval = 1\n[storage]\nstop-write-at-available-space = "1 mib"\n'
                + ("[capture]\n" if captures else "")
            )
        self.start(name, "sluice.pump_service", "--config", str(config))

    def land(self) -> None:
        self.start("land", "land", str(self.config))

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def ask(self, path: str, **body: Any) -> Any:
        url = f"http://127.0.0.1:{self.control}{path}"
        try:
            answer = httpx.post(url, json=body, timeout=30) if body else httpx.get(url, timeout=30)
        except httpx.ConnectError:
            return {"state": "away"}
        assert answer.is_success, answer.text
        return answer.json()

    def write(self, *, binlogs: bool) -> None:
        """Have TiDB write until `stop`; one restart of TiDB is between two workloads."""
        self.ask("/stop", now=True)
        self.wait(lambda: self.ask("/workload")["state"] in ("idle", "done"))
        self.ask("/workload", rate=40, transactions=None, rows=3, deletes=0.1, binlogs=binlogs)

    def committed(self) -> int:
        return int(self.ask("/workload").get("latest", 0))

    def landed(self) -> list[int]:
        """Return the numbers of the workload's transactions in the relay log, as they come."""
        relay = RelayLog.open(f"file://{self.folder}/relay")
        windows = list(relay.windows(0))
        names = {
            int(table_id): described["name"]
            for window in windows
            for ddl in window.ddls
            for table_id, described in ddl["effect"]["tables"].items()
            if described
        }
        marker = next((i for i, name in names.items() if name == "txn"), 0)
        rows = relay.read(windows).to_pylist()
        found = [row["row"] for row in rows if row["table_id"] == marker]
        return decode_inserts(TRANSACTIONS, pa.array(found, pa.large_binary()))["id"].to_pylist()

    def is_read(self, source: str) -> bool:
        """Return whether `sluice status` says that landing reads it."""
        return f", from {source}\n" in typed("status", "--config", self.config).stdout

    def wait(self, is_true: Callable[[], bool], names: tuple[str, ...] = ()) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not is_true():
            if time.monotonic() > deadline:
                logs = [(self.folder / f"{name}.log").read_text()[-3000:] for name in names]
                raise AssertionError("\n".join(logs) or "not in time")
            time.sleep(0.1)

    def grows(self, count: int = 10) -> None:
        """Wait until so many further transactions are landed."""
        through = self.committed() + count
        relay = RelayLog.open(f"file://{self.folder}/relay")
        self.wait(lambda: self.committed() > through, ("cluster",))
        ts = int(self.ask("/status")["newest_commit_ts"])
        self.wait(
            lambda: (last := relay.last()) is not None and last.hi >= ts,
            ("land", "binlogs", "capture"),
        )

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.etcd.stop()


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
