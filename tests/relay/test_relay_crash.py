"""A writer killed with -9 at any moment: what it said is committed is there, what it had not
committed is not.
"""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sluice.relay import RelayLog

WRITER = """
import os, sys
sys.path.insert(0, sys.argv[2])
from relaykit import land
from sluice.relay import RelayLog
log = RelayLog.open(sys.argv[1])
last = log.last()
lo = last.hi if last else 5
while True:
    land(log, lo, lo + 10, lo + 1, lo + 7, token=f"t{os.getpid()}")
    print(lo, flush=True)
    lo += 10
"""


@pytest.mark.quick_cases("0")
@pytest.mark.parametrize("seed", range(3))
def test_after_kill_9_every_announced_window_is_readable_and_the_chain_is_whole(tmp_path, seed):
    url = tmp_path.as_uri()
    announced = []
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, url, str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path.cwd(),
        )
        try:
            announced.append(int(writer.stdout.readline()))
            time.sleep(random.Random(seed).uniform(0.01, 0.1))
        finally:
            writer.send_signal(signal.SIGKILL)
            announced += [int(line) for line in writer.stdout.read().splitlines() if line]
            writer.wait()
    log = RelayLog.open(url)
    windows = list(log.windows(0))
    landed = [window.lo for window in windows]
    assert set(announced) <= set(landed)
    assert landed == list(range(5, windows[-1].hi, 10))
    assert len(landed) - len(announced) in (0, 1, 2)  # committed, but killed before it could say so
    assert log.read(windows).num_rows == 2 * len(windows)
    log.clean_unreferenced()
    hours = log.storage.names("parts")
    parts = [
        name
        for hour in hours
        for name in log.storage.names(f"parts/{hour}")
        if name.endswith(".arrow")
    ]
    # the last writer's, which may still be running for all we know
    assert len(parts) - len(windows) in (0, 1)
