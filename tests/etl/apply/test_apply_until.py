"""Operators can take the downstream to an exact commit timestamp, in the middle of windows, and on
from there.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.history.retain import retain
from sluice.etl.settings import Apply, Relay, Settings, Upstream, pauses
from sluice.relay import Control
from sluice.relay.archive import Archive, write_log
from sluice.relay.archive.window_merging import MergeLimits
from sluice.relay.consumers import ARCHIVE_CONSUMER, Consumers
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.snapshots import differences


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shop", "ddl"])
def test_applying_stops_exactly_at_each_snapshot_and_goes_on_to_the_next(
    mariadb: MariaDBServer, tmp_path: Path, name: str
) -> None:
    snapshots = json.loads((RECORDINGS / name / "snapshots.json").read_text())
    url = f"file://{tmp_path}/relay"
    relay = land(RECORDINGS / name, url, 1_501, through=snapshots[-1]["ts"] + 10_000)
    settings = Settings(
        Upstream("unused"), Relay(url), mariadb.downstream, apply=Apply(max_rows=20_000)
    )
    for snapshot in snapshots:
        relay.change_control(lambda _: Control(apply_until_ts=snapshot["ts"]))
        summary = run_apply(
            settings,
            until_ts=min(snapshot["ts"], relay.last().hi),
            run_seconds=240,
            prepare=local_preparer(settings),
        )
        assert summary.checkpoint == min(snapshot["ts"], relay.last().hi)
        assert differences(RECORDINGS / name, snapshot["label"], mariadb) == []


def test_a_running_apply_waits_while_it_is_paused_and_goes_on_when_resumed(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/relay"
    relay = land(RECORDINGS / "shop", url, 5_000)
    relay.change_control(lambda _: Control(apply_paused=True))
    settings = Settings(Upstream("unused"), Relay(url), mariadb.downstream)
    result = []
    thread = threading.Thread(
        target=lambda: result.append(
            run_apply(
                settings,
                until_ts=relay.last().hi,
                run_seconds=240,
                prepare=local_preparer(settings),
            )
        )
    )
    thread.start()
    time.sleep(1.0)
    assert thread.is_alive()
    with mariadb.connect() as database, database.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM information_schema.schemata WHERE schema_name = 'bank'"
        )
        assert cursor.fetchone()[0] == 0
    relay.change_control(lambda _: Control())
    thread.join(60)
    assert result and result[0].checkpoint == relay.last().hi


def test_applying_notes_its_position_and_what_it_has_passed_goes_once_it_is_archived(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.etl.settings.pauses.MIN_KEEP_MS", 1)
    monkeypatch.setitem(pauses._SPAN_UNITS_MS, "m", 1_000)  # the recording is of a minute
    monkeypatch.setattr("sluice.etl.apply._consumer_position._REPORT_INTERVAL_S", 0.0)
    url = f"file://{tmp_path}/relay"
    relay = land(RECORDINGS / "shop", url, 5_000)
    began = relay.first().lo
    settings = Settings(
        Upstream("unused"), Relay(url, "1m"), mariadb.downstream, apply=Apply(max_rows=2_000)
    )
    summary = run_apply(
        settings, until_ts=relay.last().hi, run_seconds=240, prepare=local_preparer(settings)
    )
    assert summary.checkpoint == relay.last().hi
    ((name, noted),) = Consumers(relay).positions().items()
    assert began < noted <= summary.checkpoint
    Consumers(relay).note(name, summary.checkpoint, "as it does from time to time")
    archive = Archive.open(settings.archive_url)
    archive.append(
        write_log(
            relay.storage,
            archive.storage,
            list(relay.windows(began)),
            "t",
            limits=MergeLimits(joins=False),
        ).segment()
    )
    Consumers(relay).note(ARCHIVE_CONSUMER, relay.last().hi, "the archive")
    done = retain(settings)
    assert began < relay.first().lo <= summary.checkpoint - (1_000 << 18)
    assert done.verified_changes > 1_000
