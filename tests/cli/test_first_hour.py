"""The first hour: from an empty folder to a replica in a terminal, by what each answer names next.

The upstream is the stand-in cluster with two pumps, and Spark and MariaDB are there; nothing knows
of the pipeline yet.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.devstack.control import ClusterControl
from sluice.devstack.launch import client_file, connect
from sluice.devstack.launch.service import StackPaths
from sluice.devstack.recording import Recording
from sluice.devstack.stack import Stack
from tests.bad_night import Terminal
from tests.etl.relay_from_recording import RECORDINGS

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]

RECORDING = RECORDINGS / "bootstrap"
TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "getting-started.md"
PARTS = ("etcd", "cluster", "pump-1", "pump-2", "mariadb", "spark")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[StackPaths]:
    """What a person finds: a TiDB with rows, and a database in which their user may do nothing."""
    stack = Stack(tmp_path / "stack")
    try:
        stack.up(PARTS, recording=RECORDING)
        site = stack.site()
        control = ClusterControl(site.ports["cluster-control"])
        control.replay(Recording(RECORDING).labels[0].name, "max", "range")
        deadline = time.monotonic() + 120
        while (status := control.status())["state"] != "done":
            assert status["state"] != "failed" and time.monotonic() < deadline, status
            time.sleep(0.1)
        with connect(site) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE USER sluice@'%' IDENTIFIED BY 'geheim-78'")
        yield site
    finally:
        stack.down()


@pytest.fixture
def terminal(
    site: StackPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Terminal]:
    monkeypatch.setenv("SLUICE_DOWNSTREAM_PASSWORD", "geheim-78")
    with contextlib.closing(Terminal(tmp_path / "sluice.toml")) as terminal:
        yield terminal


def test_from_an_empty_folder_to_a_replica_by_what_each_answer_names_next(
    site: StackPaths, terminal: Terminal, tmp_path: Path
) -> None:
    file, ports = tmp_path / "sluice.toml", site.ports
    init = (
        f"sluice init --service --tidb-password-env '' --relay-url file://{tmp_path}/relay"
        f" --output {file} --spark-token-file {site.secret('spark')}"
    )
    said, code = terminal.type(
        init,
        ("PD's client URLs (--pd-urls)", f"http://127.0.0.1:{ports['cluster']}"),
        ("TiDB, user@host:port (--tidb)", f"root@127.0.0.1:{ports['cluster-sql']}"),
        (
            "Downstream, user@host:port (--downstream, password in $SLUICE_DOWNSTREAM_PASSWORD)",
            f"sluice@127.0.0.1:{ports['mariadb']}",
        ),
        (
            "Spark Connect server (--spark) [sc://127.0.0.1:15002]",
            f"sc://127.0.0.1:{ports['spark']}",
        ),
    )
    assert code == 1 and "ok    upstream" in said and "may log in for copies" in said
    assert "FAIL  downstream" in said and f"`sluice grants --config {file}`" in said
    assert "ok    spark" in said and "2 online" in said and "not compared" in said
    assert "GRANT SELECT" in said and f"then `sluice doctor --config {file}`" in said

    as_root = f"mariadb --defaults-file={client_file(site)}"
    said, code = terminal.type(f"sluice grants --config {file} | {as_root}")
    assert code == 0, said
    said, code = terminal.type(f"sluice doctor --config {file}")
    assert code == 0 and "FAIL" not in said, said
    assert re.search(r"^ok +zones +new sessions in TiDB have UTC", said, re.MULTILINE), said
    (counted,) = re.findall(r"\d+ checks: 0 failed, \d+ with a warning", said)
    assert counted in TUTORIAL.read_text(encoding="utf-8"), counted
    assert "rights suffice" in said and "takes connections" in said and "2 online" in said

    said, code = terminal.type(f"sluice bootstrap --config {file} --from tidb:// --plan")
    assert code == 0, said
    said, code = terminal.type(f"sluice bootstrap --config {file} --from tidb://")
    assert code == 0 and "rows are downstream" in said, said
    said, code = terminal.type("sluice status")
    assert "checkpoint  none yet" not in said and "checkpoint  unknown" not in said
    counts = [
        terminal.type(f"{client} -sN -e 'SELECT COUNT(*) FROM bank.child'")[0].split()[0]
        for client in (
            f"mariadb --no-defaults -h 127.0.0.1 -P {ports['cluster-sql']} -u root",
            as_root,
        )
    ]
    assert counts[0] == counts[1] != "0"
