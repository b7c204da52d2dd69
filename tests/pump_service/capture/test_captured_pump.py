"""A pump process that captures, killed again and again while a recorded cluster's changes come."""

import httpx
import pytest

from sluice.pump_service.store import Store, WindowPurgedError
from sluice.pump_service.store.options import StoreOptions
from tests import recorded_changes
from tests.pump_service.capture.captured_stage import TIMEOUT_S, Stage, expected
from tests.pump_service.pumpkit import Etcd
from tests.pump_service.storekit import window

NAME = "08-scan-from-start"


@pytest.fixture
def etcd(tmp_path):
    made = Etcd(tmp_path / "etcd")
    yield made
    made.stop()


@pytest.mark.slow
def test_a_captured_pump_that_is_killed_anywhere_has_every_transaction_once(tmp_path, etcd):
    history = recorded_changes.transactions(NAME)
    middle = len(history) // 2
    begin = history[middle].commit_ts
    stage = Stage(tmp_path, etcd)
    pump = stage.pump("captured", begin)
    try:
        for each in history:
            if each.commit_ts <= begin:
                stage.apply(each, in_two_phases=False)
        rest = [each for each in history if each.commit_ts > begin]
        pump.start()
        for number, each in enumerate(rest):
            stage.apply(each, in_two_phases=bool(number % 3))
            if number % 5 == 0 and (
                number + 1 == len(rest) or rest[number + 1].commit_ts > each.commit_ts
            ):
                stage.advance(each.commit_ts)
            if number % 100 == 99:
                pump.kill()
                pump.start()
            elif number % 60 == 0:
                stage.break_streams()
        end = rest[-1].commit_ts
        pump.wait_through(end)
        page = pump.page()
        assert (page["frontier_ts"], page["failure"]) == (end, "")
        assert page["regions"]["live"] >= 4
        assert "binlog_pump_capture_failed 0.0" in httpx.get(f"http://{pump.address}/metrics").text
        assert pump.process.poll() is None
        pump.process.terminate()
        assert pump.process.wait(TIMEOUT_S) == 0
    finally:
        stage.close()
    options = StoreOptions(stop_write_at_available_space=1, is_captured=True)
    store = Store.open(pump.data, options)
    try:
        found = window(store, begin, end)
        with pytest.raises(WindowPurgedError):
            window(store, begin - 1, end)
    finally:
        store.close()
    assert len(found) > 100
    assert found == expected(history, begin, end)
