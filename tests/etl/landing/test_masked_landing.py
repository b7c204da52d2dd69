"""A pipeline whose relay log holds no clear value of a masked column, whatever dies on the way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from sluice.etl import load_settings
from sluice.etl.apply import run_apply
from sluice.relay import RelayLog, read_parts
from tests.etl.captured_site import Site
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.masking import KEY, VARIABLE, hashed
from tests.etl.preparing import local_preparer

DATABASE = "sluice_load"
RULES = f"""
[filter.mask]
key-env = "{VARIABLE}"
[[filter.columns]]
tables = ["{DATABASE}.txn"]
mask = {{ note = "hash", extra_0 = "hash", extra_1 = "hash", extra_2 = "hash" }}
[[filter.columns]]
tables = ["{DATABASE}.load_*"]
mask = {{ pad = "hash" }}
"""
Rows = dict[str, list[tuple[int | str, ...]]]


@pytest.fixture
def site(
    tmp_path: Path, mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch, captures: bool
) -> Iterator[Site]:
    monkeypatch.setenv(VARIABLE, KEY)
    downstream = f'[downstream]\nhost = "127.0.0.1"\nport = {mariadb.port}'
    made = Site(tmp_path, downstream, version="8.0.11-TiDB-v8.5.1" if captures else "")
    made.config.write_text(made.config.read_text() + RULES)
    yield made
    made.close()


def rows(port: int) -> Rows:
    found: Rows = {}
    with (
        pymysql.connect(host="127.0.0.1", port=port, user="root") as connection,
        connection.cursor() as cursor,
    ):
        for name in ("txn", "load_1", "load_2"):
            cursor.execute(f"SELECT * FROM {DATABASE}.{name}")
            found[name] = sorted(cursor.fetchall())
    return found


def without_clear_values(folder: Path, clear: set[bytes]) -> int:
    """The bytes looked through: of every file, and of every row of the relay log."""
    relay = RelayLog.open(f"file://{folder}/relay")
    parts = [part.relative_to(folder / "relay") for part in (folder / "relay").rglob("*.arrow")]
    held = {str(path): path.read_bytes() for path in (folder / "relay").rglob("*.*")}
    assert parts, sorted(held)[:20]
    windows = list(relay.windows(0))
    named = [part for window in windows for part in window.parts]
    held["rows"] = b"\n".join(read_parts(relay.url, named)["row"].to_pylist())
    held["land.log"] = (folder / "land.log").read_bytes()
    found = [(name, value) for name, data in held.items() for value in clear if value in data]
    assert not found, found[:5]
    return sum(map(len, held.values()))


@pytest.mark.slow
@pytest.mark.parametrize("captures", [False, True])
def test_a_pipeline_that_dies_now_and_then_holds_masked_values_alone(
    site: Site, mariadb: MariaDBServer, captures: bool
) -> None:
    if captures:
        site.config.write_text(site.config.read_text().replace("-ts = 0\n", "-ts = -1\n"))
    settings = load_settings(site.config)
    source = "capture" if captures else "binlogs"
    site.pump(source, captures=captures)
    log = site.folder / f"{source}.log"
    site.wait(lambda: not captures or "capture begins" in log.read_text(), (source,))
    site.land()
    relay = RelayLog.open(settings.relay.url)
    site.wait(lambda: relay.last() is not None, ("land",))
    workload = {"rate": 40, "transactions": None, "rows": 3, "deletes": 0.1, "tables": 2}
    site.ask("/workload", binlogs=not captures, **workload)
    pauses = (0.0, 0.15, 0.6)
    for number, pause in enumerate(pauses):
        site.grows()
        column = {"schema": DATABASE, "table": "txn", "name": f"extra_{number}"}
        default = f"secret default {number}"
        site.ask("/column", **column, default=default, binlogs=not captures)
        time.sleep(pause)
        site.kill("land")
        before = site.committed()
        site.wait(lambda: site.committed() > before + 20, ("cluster",))
        site.land()
    site.grows()
    site.ask("/stop", now=True)
    site.wait(lambda: site.ask("/workload")["state"] == "done")
    ts = int(site.ask("/status")["newest_commit_ts"])
    site.wait(lambda: (last := relay.last()) is not None and last.hi >= ts, ("land",))
    site.kill("land")

    run_apply(settings, until_ts=ts, run_seconds=120, prepare=local_preparer(settings))
    upstream = rows(site.sql)
    there = rows(mariadb.port)
    defaults = tuple(f"secret default {number}" for number in range(len(pauses)))
    assert {row[2:] for row in upstream["txn"]} == {defaults}
    masked = {
        name: [(*row[:-1], hashed(str(row[-1]))) for row in own]
        for name, own in upstream.items()
        if name != "txn"
    }
    masked["txn"] = [
        (row[0], hashed(row[1], 32), *(hashed(each, 40) for each in defaults))
        for row in upstream["txn"]
    ]
    assert there == {name: sorted(own) for name, own in masked.items()}
    assert len(there["txn"]) == site.committed()
    clear = {
        str(row[1 if name == "txn" else -1]).encode()
        for name, own in upstream.items()
        for row in own
    }
    wanted = {*clear, b"transaction ", b"secret default"}
    assert without_clear_values(site.folder, wanted) > 100_000
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM tidb_binlog.checkpoint")
        held = repr(cursor.fetchall()).encode()
    assert held and not [value for value in wanted if value in held]
