"""Pumps that come to harm: landing has every transaction of what it says is landed, or stops by
name.

A recording is sent to two pumps. Then bytes of their value logs are changed, cut off or removed,
and entries vanish from the registry, before landing or while it is under way. What is landed then
is compared with what was sent.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from sluice.devstack.stack import Stack
from sluice.errors import SluiceError
from sluice.etl.landing import run_land
from sluice.etl.landing.planner import MissedCommitError
from sluice.etl.settings import Downstream, Relay, Settings, Spark, Upstream
from sluice.etl.settings import Window as Limits
from sluice.etl.spark.errors import WorkerError
from sluice.etl.spark.resilient_function import ResilientFunction
from sluice.relay import RelayLog
from sluice.tidb import EtcdClient, Registry
from tests.etl.filled_pumps import fill
from tests.etl.landing.extract.test_explode import explode
from tests.etl.relay_from_recording import RECORDINGS, committed

RECORDING = RECORDINGS / "shop"
_PUMPS = ("pump-1", "pump-2")
REFUSALS = (
    "PumpReadError",
    "PumpUnavailableError",
    "UnreadPumpError",
    "CommitsPurgedError",
    "MissedCommitError",
    "BinlogDecodeError",
)
"""Names of the errors with which landing may stop, or wait, at a harmed pump. A worker's error
names the file.
"""


class InProcess(ResilientFunction):
    """What Spark's workers would do, done here as where Spark is away."""

    def connect(self, timeout_s: float, check: Callable[[], None] = lambda: None) -> None:
        """Need no session."""
        check()

    def __call__(
        self, tasks: pa.Table, timeout_s: float, *, alone: bool, is_small: bool, label: str = ""
    ) -> Iterator[pa.RecordBatch]:
        """Map the tasks here, whatever their size."""
        return self._run_locally(tasks)


@contextlib.contextmanager
def sent(home: Path) -> Iterator[Stack]:
    """etcd, the stand-in cluster and two pumps that have taken the recording."""
    stack = Stack(home)
    try:
        fill(stack, RECORDING, _PUMPS)
        yield stack
    finally:
        stack.down()


def harm(stack: Stack, rng: random.Random) -> str:
    """Do one or two of these things; say which."""
    done = [
        rng.choice((_flip, _cut, _remove, _forget, _forget_stopped))(stack, rng)
        for _ in range(rng.randint(1, 2))
    ]
    return "; ".join(done)


def _with_stopped(stack: Stack, rng: random.Random, change: Callable[[Path], str]) -> str:
    name = rng.choice(_PUMPS)
    stack.stop([name])
    logs = sorted((stack.home / name).rglob("*.vlog"))
    if not logs:
        return f"{name} has no value log left"
    what = change(rng.choice(logs))
    with contextlib.suppress(Exception):  # it may refuse to start
        stack.up([name])
    return f"{name}: {what}"


def _flip(stack: Stack, rng: random.Random) -> str:
    def change(path: Path) -> str:
        data = bytearray(path.read_bytes())
        end = len(data.rstrip(b"\0"))
        for at in (rng.randrange(end) for _ in range(rng.randint(1, 3)) if end):
            data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        return f"{path.name} has bytes changed"

    return _with_stopped(stack, rng, change)


def _cut(stack: Stack, rng: random.Random) -> str:
    def change(path: Path) -> str:
        size = rng.randrange(len(path.read_bytes().rstrip(b"\0")) + 1)
        with path.open("r+b") as file:
            file.truncate(size)
        return f"{path.name} is cut to {size} bytes"

    return _with_stopped(stack, rng, change)


def _remove(stack: Stack, rng: random.Random) -> str:
    def change(path: Path) -> str:
        path.unlink()
        return f"{path.name} is gone"

    return _with_stopped(stack, rng, change)


def _forget(stack: Stack, rng: random.Random) -> str:
    """Remove a registry entry of a pump that runs."""
    name = rng.choice(_PUMPS)
    port = stack.site().ports[name]
    with EtcdClient(f"http://127.0.0.1:{stack.site().ports['etcd-client']}") as etcd:
        registry = Registry(etcd)
        gone = [pump.node_id for pump in registry.pumps() if pump.host.endswith(f":{port}")]
        for node_id in gone:
            registry.remove_pump(node_id)
    return f"the registry forgets {name} {gone}"


def _forget_stopped(stack: Stack, rng: random.Random) -> str:
    name = rng.choice(_PUMPS)
    what = _forget(stack, rng)
    stack.stop([name])
    return f"{what}, and {name} is stopped"


def wrong(stack: Stack, relay_url: str, rng: random.Random, patience_s: float) -> tuple[str, str]:
    """Land around the harm.

    Return what of the relay log isn't what was sent ("" if nothing), and how it went.
    """
    rows = committed(RECORDING)
    settings = Settings(
        upstream=Upstream(f"http://127.0.0.1:{stack.site().ports['cluster']}", initial_commit_ts=0),
        relay=Relay(relay_url),
        downstream=Downstream("127.0.0.1", port=1),
        spark=Spark("sc://127.0.0.1:1"),
        window=Limits(max_transactions=rng.choice((7, 80, 1000)), idle_interval_ms=100),
    )
    story = []
    if rng.random() < 0.6:
        middle = rng.choice(rows)[0]
        run_land(settings, start_ts=0, until_ts=middle, run_seconds=120)
        story.append(f"landed through {middle}")
    story.append(harm(stack, rng))
    try:
        run_land(settings, start_ts=0, until_ts=rows[-1][0], run_seconds=patience_s)
    except SluiceError as error:
        story.append(f"{type(error).__name__}: {error}")
        if type(error).__name__ not in REFUSALS and not (
            isinstance(error, WorkerError) and ".vlog" in str(error)
        ):
            return (
                f"an error that isn't among the refusals: {type(error).__name__}: {error}",
                "; ".join(story),
            )
    windows = list(RelayLog.open(relay_url).windows(0))
    hi = windows[-1].hi if windows else 0
    expected, _ = explode([row for row in rows if row[0] <= hi])
    story.append(f"landed through {hi} of {rows[-1][0]}")
    found = RelayLog.open(relay_url).read(windows).to_pylist() if windows else []
    if found != expected.to_pylist() and _stops_at_missed_commits(stack, settings, story):
        return "", "; ".join(story)
    if found != expected.to_pylist():
        return f"through {hi} {len(found)} changes are landed of {expected.num_rows}", "; ".join(
            story
        )
    return "", "; ".join(story)


def _stops_at_missed_commits(stack: Stack, settings: Settings, story: list[str]) -> bool:
    """Whether landing names what it has passed over, once the pump that holds it is registered
    again: a pump that nobody has registered and that doesn't run can't be known of.
    """
    with contextlib.suppress(Exception):  # it may refuse to start
        stack.up(list(_PUMPS))
    try:
        run_land(settings, start_ts=0, run_seconds=20)
    except MissedCommitError as error:
        story.append(f"MissedCommitError: {error}")
        return True
    return False


def judge(home: Path, seed: int, patience_s: float = 8.0) -> tuple[str, str]:
    """Judge one history of harm."""
    rng = random.Random(seed)
    with sent(home / "stack") as stack:
        return wrong(stack, (home / "relay").as_uri(), rng, patience_s)
