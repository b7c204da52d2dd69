"""A stand-in cluster, pumps and landing as processes of their own, with a TiDB that never rests."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from sluice.relay import RelayLog
from sluice.tidb import EtcdClient
from sluice.tidb.rows import decode_inserts
from tests.cli.typed import typed
from tests.etl.story import table
from tests.ports import free_port
from tests.pump_service.pumpkit import Etcd

TIMEOUT_S = 90
TRANSACTIONS = table(1, "txn", "id bigint", "note varchar(32)", primary="id")
_LAND = (
    "import sys; from sluice.etl import load_settings, run_land;"
    " run_land(load_settings(sys.argv[1]), run_seconds=600)"
)


class Site:
    """etcd, the stand-in cluster, pumps and landing as processes."""

    def __init__(
        self,
        folder: Path,
        downstream: str = '[downstream]\ntype = "file"',
        *,
        version: str = "",
        spark: str = "sc://127.0.0.1:1",
    ) -> None:
        """`downstream` is its section of sluice.toml; `version` that of a TiDB in the topology;
        `spark` the Spark Connect server, without one landing does what that would do.
        """
        self.folder = folder
        self.etcd = Etcd(folder / "etcd")
        if version:
            self._register(version)
        self.pd, self.control, self.sql = free_port(), free_port(), free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.config = folder / "sluice.toml"
        self.config.write_text(
            f'[upstream]\npd-urls = "http://127.0.0.1:{self.pd}"\n'
            f"initial-commit-ts = 0\n"
            f'sql-host = "127.0.0.1"\nsql-port = {self.sql}\n'
            f'[relay]\nurl = "file://{folder}/relay"\n'
            f'{downstream}\n[file]\ndir = "{folder}"\n'
            f'[spark]\nremote = "{spark}"\n[window]\nidle-interval-ms = 100\n'
        )
        self.start(
            "cluster", "sluice.devstack.tidb", "--capture", "--min-ts-interval", "0.1",
            "--etcd", f"http://127.0.0.1:{self.etcd.port}", "--listen", f"127.0.0.1:{self.pd}",
            "--control", f"127.0.0.1:{self.control}", "--sql", f"127.0.0.1:{self.sql}",
        )  # fmt: skip
        self.wait(lambda: self.ask("/status")["state"] == "idle")

    def _register(self, version: str) -> None:
        with EtcdClient(f"http://127.0.0.1:{self.etcd.port}") as etcd:
            place = "/topology/tidb/10.0.0.1:4000"
            etcd.put(f"{place}/info", json.dumps({"version": version}).encode())
            etcd.put(f"{place}/ttl", b"1")

    def start(self, name: str, module: str, *words: str) -> None:
        command = ("-c", _LAND) if module == "land" else ("-m", module)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *command, *words], stdout=log, stderr=log
            )

    def pump(self, name: str, *, captures: bool = False, share: str = "1/1") -> None:
        config = self.folder / f"{name}.toml"
        if not config.exists():
            config.write_text(
                f'addr = "127.0.0.1:{free_port()}"\npd-urls = "http://127.0.0.1:{self.pd}"\n'
                f'data-dir = "{self.folder / name}"\nnode-id = "{name}"\n'
                'heartbeat-interval = 1\n[storage]\nstop-write-at-available-space = "1 mib"\n'
                + (f'[capture]\nshare = "{share}"\n' if captures else "")
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
                paths = [self.folder / f"{name}.log" for name in names]
                logs = [path.read_text()[-3000:] for path in paths if path.exists()]
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
