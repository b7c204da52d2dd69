"""The upstream's schema at a dump's position, from TiDB's own keys."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.etl.copy.definitions import read_source_schema
from sluice.tidb.tikv.meta import string_key
from tests.etl.copy.copying import RECORDING, definitions
from tests.etl.relay_from_recording import MetaKeys

SNAPSHOTS = {s["label"]: s for s in json.loads((RECORDING / "snapshots.json").read_text())}


class Collected(MetaKeys):
    """TiKV after its garbage collection: what the schema version was is gone."""

    def get(self, key: bytes, ts: int) -> bytes | None:
        return None if key == string_key("SchemaVersionKey") else super().get(key, ts)


@pytest.mark.parametrize("label", SNAPSHOTS)
def test_the_schema_at_a_dumps_position_is_known_after_tikv_has_collected_it(label: str) -> None:
    snapshot = SNAPSHOTS[label]
    meta: Any = Collected(RECORDING)
    found = read_source_schema(meta, meta, snapshot["ts"], "true")
    assert found == definitions(snapshot["ts"]) and found.schema_version > 0
    assert set(snapshot["tables"]) <= {table.full_name for table in found.tables}
