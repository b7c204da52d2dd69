"""Sluice pumps, set up by the same ``pump.toml`` keys as TiDB's Pump."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from sluice.devstack.launch.service import LOOPBACK, Service, ServiceNotReady, StackPaths, get_json

COUNT_VARIABLE = "SLUICE_PUMPS"
"""The variable with the number of pumps [2, with capture 1]."""
CAPTURE_VARIABLE = "SLUICE_CAPTURE"
"""1: one pump reads the stand-in TiKV's change data, and TiDB writes no binlogs."""
HAS_CAPTURE = os.environ.get(CAPTURE_VARIABLE, "") == "1"
BEGIN_TS = 1 if HAS_CAPTURE else 0
"""Where landing begins: pumps that take binlogs have all; a capture begins behind a timestamp."""
_DEFAULT_COUNT = "1" if HAS_CAPTURE else "2"
NAMES = tuple(
    f"pump-{n}" for n in range(1, int(os.environ.get(COUNT_VARIABLE, _DEFAULT_COUNT)) + 1)
)
PORTS = NAMES
GC_VARIABLE = "SLUICE_PUMP_GC"
"""How long pumps keep binlogs, as `gc` of pump.toml [7 days]."""
PLAIN_VARIABLE = "SLUICE_PLAIN_PUMPS"
"""Names of pumps, with commas, that shall serve only what an original Pump does: no bulk read."""


def pump(site: StackPaths, name: str) -> Service:
    """Return the pump `name`; its data is in ``<state folder>/<name>/data``."""
    port = site.ports[name]
    address = f"{LOOPBACK}:{port}"
    folder = site.data(name)
    config = folder / "pump.toml"

    def prepare() -> None:
        (folder / "data").mkdir(parents=True, exist_ok=True)
        config.write_text(_settings(site, name, address, folder), encoding="utf-8")

    def probe() -> None:
        status = get_json(f"http://{address}/status")["status"]
        state = status.get(name, {}).get("state")
        if state != "online":
            raise ServiceNotReady(f"its state in the registry is {state!r}, not 'online'")

    return Service(
        name=name,
        argv=(sys.executable, "-m", "sluice.pump_service", "--config", str(config)),
        ports={"pump": port},
        env=(
            {"SLUICE_FAILPOINTS": "rpc.no_window=on"}
            if name in os.environ.get(PLAIN_VARIABLE, "").split(",")
            else {}
        ),
        probe=probe,
        needs=("cluster",),
        prepare=prepare,
        data=folder,
        summary=address,
    )


def _settings(site: StackPaths, name: str, address: str, folder: Path) -> str:
    # JSON strings are TOML strings
    keys = {
        "addr": address,
        "advertise-addr": address,
        "pd-urls": f"http://{LOOPBACK}:{site.ports['cluster']}",
        "data-dir": str(folder / "data"),
        "node-id": name,
        "log-file": "",
        "gc": os.environ.get(GC_VARIABLE, "7"),
    }
    top = "".join(
        f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in keys.items()
    )
    capture = f"\n[capture]\nstart-ts = {BEGIN_TS}\n" if HAS_CAPTURE else ""
    return (
        f'# rewritten at every start\n{top}\n[storage]\nstop-write-at-available-space = "64'
        f' mib"\n{capture}'
    )
