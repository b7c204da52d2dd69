"""DuckDB rebuilds tables from Canal-JSON by the documented query."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from sluice.etl.changes.messages import MessageFormat
from tests.etl.changes.messages.canal_reader import CanalReader
from tests.etl.changes.messages.recorded_messages import (
    SNAPSHOTS,
    frozen,
    meaning,
    messages_of,
    snapshot_rows,
    snapshot_ts,
)
from tests.etl.relay_from_recording import RECORDINGS, land

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "read-topics.md"


@pytest.mark.slow
def test_the_documented_query_rebuilds_every_table_with_a_key(tmp_path: Path) -> None:
    folder = RECORDINGS / "shop"
    through = snapshot_ts(folder, SNAPSHOTS["shop"])
    relay = land(folder, f"file://{tmp_path}", 2000, through=through)
    messages = list(messages_of(relay, MessageFormat("canal-json")))
    reader = CanalReader()
    for message in messages:
        reader.read(message)
    sent = pa.table(
        {"n": range(len(messages)), "value": [(m.value or b"").decode() for m in messages]}
    )
    query = re.search(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert query is not None
    with duckdb.connect() as connection:
        connection.register("sent", sent)
        connection.execute("CREATE TABLE messages AS SELECT n, CAST(value AS JSON) value FROM sent")
        rows = connection.execute(query[1]).fetchall()
    found: dict[str, Counter[Any]] = defaultdict(Counter)
    for name, data in rows:
        kinds = reader.kinds[name]
        row = {column: meaning(value, kinds[column]) for column, value in json.loads(data).items()}
        found[name][frozen(row)] += 1
    expected = snapshot_rows(folder, SNAPSHOTS["shop"], reader, relay)
    keyless = {"bank.log_nopk"}
    assert found.keys() == expected.keys() - keyless
    assert all(found[name] == expected[name] for name in found)
