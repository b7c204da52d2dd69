"""Real Dumpling folders of a cluster under traffic become replicas: as the cluster was, and as it
became.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.etl.apply import run_apply
from tests.etl.copy.copying import BANK_ONLY, DUMPS, RECORDING, bootstrap, settings_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import land
from tests.etl.snapshots import differences


def wanted(lines: list[str], dump: str) -> list[str]:
    return [line for line in lines if dump != "dump-csv-plain" or line.startswith("bank.")]


@pytest.mark.quick_cases("dump-csv-plain")
@pytest.mark.parametrize("mode", [pytest.param("atomic", marks=pytest.mark.slow), "parallel"])
@pytest.mark.parametrize("dump", DUMPS)
def test_a_dump_is_the_snapshot_at_its_position_and_replication_goes_on_from_there(
    mariadb: MariaDBServer, tmp_path: Path, dump: str, mode: str
) -> None:
    filters = BANK_ONLY if dump == "dump-csv-plain" else None
    settings = settings_of(mariadb, tmp_path, filters, mode)
    summary = bootstrap(settings, RECORDING / dump)
    assert wanted(differences(RECORDING, DUMPS[dump], mariadb), dump) == []
    assert summary.rows == summary.rows_there > 7_900
    last = land(RECORDING, settings.relay.url, 400).last()
    assert last is not None
    applied = run_apply(
        settings, until_ts=last.hi, run_seconds=120, prepare=local_preparer(settings)
    )
    assert applied.checkpoint == last.hi and applied.changes > 0
    assert wanted(differences(RECORDING, "z_end", mariadb), dump) == []
