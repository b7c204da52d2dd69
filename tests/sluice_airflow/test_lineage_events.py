"""The listener of Airflow's OpenLineage provider gets TiDB's tables beside the replica's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sluice.devstack.repository import DAGS
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import with_item

pytestmark = pytest.mark.slow


def airflow(*words: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "airflow", *words],
        env=os.environ | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-8_000:]
    return done.stdout


def dataset(event: dict[str, Any], side: str) -> dict[str, Any]:
    (found,) = event[side]
    return found


def test_a_run_s_event_names_the_table_in_tidb_and_the_replica_s_with_their_columns(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story, events = with_item(mariadb, tmp_path), tmp_path / "events.jsonl"
    (pipelines := tmp_path / "pipelines").mkdir()
    (pipelines / "shop.toml").write_text(
        '[upstream]\npd-urls = "http://127.0.0.1:1"\nsql-host = "tidb.example"\n'
        f'[relay]\nurl = "{story.url}"\n'
        f'[downstream]\nhost = "127.0.0.1"\nport = {mariadb.port}\nuser = "sluice"\n'
        '[[filter.columns]]\ntables = ["d.item"]\nrename = { v = "value" }\n'
        '[[route]]\nschema-pattern = "d"\ntarget-schema = "shop"\n'
    )
    env = {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
            {"type": "file", "log_file_path": str(events), "append": True}
        ),
        "SLUICE_PIPELINES": str(pipelines),
    }
    airflow("db", "migrate", **env)
    conf = {"run_seconds": 60, "until": str(story.now)}
    log = airflow(
        "dags", "test", "sluice_replicate_shop",
        "--mark-success-pattern", "^land$", "--conf", json.dumps(conf),
        **env,
    )  # fmt: skip
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, value FROM shop.item")
        assert list(cursor.fetchall()) == [(1, 1)], log[-8_000:]
    found = [json.loads(line) for line in events.read_text().splitlines()]
    (event,) = [
        one
        for one in found
        if one["eventType"] == "COMPLETE" and one["job"]["name"].endswith(".apply")
    ]
    tidb, replica = dataset(event, "inputs"), dataset(event, "outputs")
    assert (tidb["namespace"], tidb["name"]) == ("tidb://tidb.example:4000", "d.item")
    assert (replica["namespace"], replica["name"]) == (
        f"mysql://127.0.0.1:{mariadb.port}",
        "shop.item",
    )
    columns = [
        [field["name"] for field in it["facets"]["schema"]["fields"]] for it in (tidb, replica)
    ]
    assert columns == [["id", "v"], ["id", "value"]]
    (origin,) = replica["facets"]["columnLineage"]["fields"]["value"]["inputFields"]
    assert [origin[key] for key in ("namespace", "name", "field")] == [
        "tidb://tidb.example:4000",
        "d.item",
        "v",
    ]
