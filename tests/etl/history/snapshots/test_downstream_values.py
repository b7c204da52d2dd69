"""What was replicated is read back from the downstream, at its checkpoint, in exactly the
upstream's values.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.history.snapshots import consistent_reader as downstream_reader
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader
from sluice.etl.history.snapshots.downstream_rows import DownstreamTable
from tests.etl.apply.test_apply_recordings import replay
from tests.etl.history.snapshots.recorded_rows import (
    counted,
    definitions,
    recorded_rows,
    recorded_snapshot,
)
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS

CLUSTER = 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "label", "transactions"), [("types", "end", 7), ("edges", "d_values", 200)]
)
def test_every_value_of_every_type_comes_back_as_it_is_upstream(
    mariadb: MariaDBServer,
    tmp_path: Path,
    name: str,
    label: str,
    transactions: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(downstream_reader, "_MIN_PAGE_ROWS", 3)
    monkeypatch.setattr(downstream_reader, "_MAX_PAGE_ROWS", 7)
    replay(mariadb, tmp_path, name, label, transactions)
    listed = recorded_snapshot(RECORDINGS / name, label)
    known = {
        table.full_name: table for table in definitions(RECORDINGS / name, listed["ts"]).tables
    }
    unlike = []
    with ConsistentReader.open(mariadb.downstream, CLUSTER, 2) as opened:
        assert opened.checkpoint.commit_ts <= listed["ts"]
        for number, full in enumerate(listed["tables"]):
            table = known[full]
            found: Counter[tuple[Any, ...]] = Counter()
            for batch in opened.rows(
                number % 2, DownstreamTable(table, table.schema_name, table.name)
            ):
                found += counted(batch)
            wanted = recorded_rows(RECORDINGS / name, label, table)
            if found != wanted:
                unlike.append(
                    (full, list((wanted - found).items())[:2], list((found - wanted).items())[:2])
                )
    assert unlike == []
