"""What operators see of a pump that captures: `sluice status` beside a real pump process."""

import json
import time

import pytest

from sluice.devstack.tidb.mvcc_records import Change
from tests import recorded_changes
from tests.cli.typed import typed
from tests.pump_service.capture.test_captured_pump import NAME, TIMEOUT_S, Stage
from tests.pump_service.pumpkit import Etcd


@pytest.fixture
def etcd(tmp_path):
    made = Etcd(tmp_path / "etcd")
    yield made
    made.stop()


def test_status_shows_a_capture_and_the_transaction_that_holds_it_back(tmp_path, etcd):
    history = recorded_changes.transactions(NAME)
    begin = history[-1].commit_ts
    config = tmp_path / "sluice.toml"
    config.write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:{etcd.port}"\n'
        f'[relay]\nurl = "file://{tmp_path}/relay"\n'
        '[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    stage = Stage(tmp_path, etcd, begin)
    try:
        for each in history:
            stage.apply(each, in_two_phases=False)
        stage.start()
        now_ts = stage.looped.do(stage.looped.world.tso)
        stage.advance(now_ts)
        stage.wait_through(now_ts)
        start_ts = stage.looped.do(stage.looped.world.tso)
        key = next(iter(history[-1].changes)).key
        stage.looped.do(
            stage.looped.world.store.prewrite_all, {key: Change(b"\x80\x00\x00\x00\x00\x00")},
            start_ts, key,
        )  # fmt: skip
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            stage.advance(stage.looped.do(stage.looped.world.tso))
            found = json.loads(typed("status", "--json", "--config", config).stdout)
            capture = found["pumps"][0]["capture"]
            if capture["held_back_by"]:
                break
            assert time.monotonic() < deadline, capture
            time.sleep(0.5)
        assert capture["frontier_ts"] <= start_ts and capture["regions"]["live"] >= 4
        shown = typed("status", "--config", config).stdout
        assert "captures from TiKV, " in shown and " live" in shown, shown
        assert f"held back by a lock of transaction {start_ts} " in shown
        assert f"on key {key.hex()} in region " in shown
    finally:
        stage.close()
