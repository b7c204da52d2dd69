"""Pumps share the tables; they are killed and stopped at any moment, and landing joins every
transaction once.
"""

import itertools
import random
import signal

import pyarrow as pa
import pytest

from sluice.etl.landing._job import LandingJob
from sluice.etl.landing.extract import LandRanges, RowExtractor
from sluice.relay import PART_SCHEMA, RelayLog, read_parts
from sluice.tidb import EtcdClient, Registry
from sluice.tidb.codec.memcomparable import decode_int
from sluice.tidb.window_schema import WINDOW_SCHEMA
from tests import recorded_changes
from tests.pump_service.capture.captured_stage import ShareHolder, Stage, expected
from tests.pump_service.capture.window_taker import CLUSTER_ID, WindowTaker
from tests.pump_service.pumpkit import Etcd

NAME = "08-scan-from-start"
SHARES = 3
ACCIDENTS = 6


@pytest.fixture
def etcd(tmp_path):
    made = Etcd(tmp_path / "etcd")
    yield made
    made.stop()


@pytest.fixture
def history():
    return recorded_changes.transactions(NAME)


@pytest.fixture
def stage(tmp_path, etcd, history):
    """Each table has a region of its own, but two tables share one."""
    tables = {
        change.key[:9] for each in history for change in each.changes if change.key[:1] == b"t"
    }
    made = Stage(tmp_path, etcd, sorted(tables)[::2])
    yield made
    made.close()


class Lander(WindowTaker):
    """Lands windows by the real planner and the workers' function, without Spark."""

    def __init__(self, begin, registry, folder):
        super().__init__(begin, registry)
        self.relay = RelayLog.open(f"file://{folder}/relay")
        self.parts, self.transactions, self.windows = [], 0, 0
        self.register()
        work = LandRanges(self.relay.url, CLUSTER_ID)
        self._job = LandingJob(lambda tasks, *_, **__: list(work(iter(tasks.to_batches()))))

    def take(self, plan):
        self.windows += 1
        result = self._job.run(plan, f"token{self.windows}", 60.0)
        self.parts += result.parts
        self.transactions += result.transactions


@pytest.fixture
def lander(etcd, tmp_path, history):
    with EtcdClient(f"http://127.0.0.1:{etcd.port}", timeout_s=30) as client:
        made = Lander(history[len(history) // 2].commit_ts, Registry(client), tmp_path)
        yield made
        made.close()


def rows_of(table):
    """Each transaction's rows, and the order of their kinds."""
    names = ("commit_ts", "start_ts", "kind", "table_id", "row")
    found = {}
    for commit, start, *row in zip(*(table[name].to_pylist() for name in names)):
        found.setdefault((commit, start), []).append(row)
    return found


@pytest.mark.beyond_ci
@pytest.mark.slow
def test_of_shares_on_pumps_that_die_and_freeze_every_transaction_is_landed_once_and_whole(
    stage, history, lander
):
    begin = lander.lo
    for each in history:
        if each.commit_ts <= begin:
            stage.apply(each, in_two_phases=False)
    pumps = [
        stage.pump(f"{name}-{number}", begin, f"{number}/{SHARES}")
        for name in ("first", "second")
        for number in range(1, SHARES + 1)
    ]
    for pump in pumps:
        pump.start()
    rest = [each for each in history if each.commit_ts > begin]
    chance = random.Random(11)
    accidents = set(chance.sample(range(len(rest)), ACCIDENTS))
    hit, frozen = None, False
    for number, each in enumerate(rest):
        stage.apply(each, in_two_phases=bool(number % 3))
        if number + 1 < len(rest) and rest[number + 1].commit_ts == each.commit_ts:
            continue
        lander.now = each.commit_ts
        stage.advance(each.commit_ts)
        if number % 7 == 0:
            lander.land()
        if number in accidents:
            if hit is not None and frozen:
                hit.process.send_signal(signal.SIGCONT)
            elif hit is not None:
                hit.start()
            hit, frozen = chance.choice(pumps), not frozen
            hit.process.send_signal(signal.SIGSTOP if frozen else signal.SIGKILL)
            if not frozen:
                hit.process.wait()
    end = rest[-1].commit_ts
    lander.wait_through(end, stage)
    if frozen:
        hit.process.send_signal(signal.SIGCONT)
    check_landed(lander, history, begin, end)
    assert len(lander.hosts) > SHARES
    tables = {
        decode_int(change.key, 1)[0]
        for each in rest
        for change in each.changes
        if change.key[:1] == b"t"
    }
    assert len(tables) > SHARES


def check_landed(lander, history, begin, end):
    """Compare what was landed with a naive reader's transactions."""
    wanted = expected(history, begin, end)
    columns = zip(WINDOW_SCHEMA, zip(*wanted))
    batch = pa.record_batch(
        [pa.array(values, field.type) for field, values in columns], WINDOW_SCHEMA
    )
    extractor = RowExtractor("model")
    model = rows_of(pa.Table.from_batches(extractor.extract(batch), PART_SCHEMA))
    landed = rows_of(read_parts(lander.relay.storage, lander.parts))
    assert list(landed) == list(model)
    assert {name: sorted(rows) for name, rows in landed.items()} == {
        name: sorted(rows) for name, rows in model.items()
    }
    assert lander.transactions == len(wanted)


@pytest.mark.slow
def test_shares_of_holders_that_die_and_freeze_are_taken_over_and_nothing_is_missing(
    stage, history, lander
):
    """The processes of a holder are killed, killed without its pumps, or frozen."""
    begin = lander.lo
    for each in history:
        if each.commit_ts <= begin:
            stage.apply(each, in_two_phases=False)
    holders = [ShareHolder(stage, name, SHARES) for name in ("one", "two", "three")]
    for holder in holders:
        holder.start()
    rest = [each for each in history if each.commit_ts > begin]
    chance = random.Random(5)
    accidents = set(chance.sample(range(len(rest)), ACCIDENTS))
    hit, kinds = None, itertools.cycle(["group", "frozen", "alone"])
    for number, each in enumerate(rest):
        stage.apply(each, in_two_phases=bool(number % 3))
        if number + 1 < len(rest) and rest[number + 1].commit_ts == each.commit_ts:
            continue
        lander.now = each.commit_ts
        stage.advance(each.commit_ts)
        if number % 7 == 0:
            lander.land()
        if number in accidents:
            lander.wait_through(each.commit_ts, stage)
            if hit is not None and hit.process.poll() is None:
                hit.signal_all(signal.SIGCONT)
            elif hit is not None:
                hit.start()
            hit, kind = chance.choice(holders), next(kinds)
            if kind == "frozen":
                hit.signal_all(signal.SIGSTOP)
            elif kind == "group":
                hit.kill()
            else:
                hit.process.kill()
                hit.process.wait()
    end = rest[-1].commit_ts
    lander.wait_through(end, stage)
    check_landed(lander, history, begin, end)
    assert len({host.rsplit(":", 1)[1] for host in lander.hosts}) > SHARES
