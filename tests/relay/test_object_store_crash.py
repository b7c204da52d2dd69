"""Writers that are killed, stopped and woken while the object store, and the way to it, fails them:
every window that one of them says is landed stays what that one landed, and the chain is whole.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from relaykit import BASE, window

from sluice.relay import RelayLog, WindowConflictError
from tests.object_store.everywhere import faults
from tests.object_store.proxy import Fault
from tests.object_store.s3_server import S3Server

WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from relaykit import BASE, batch, window
from sluice.relay import ClaimLostError, RelayLog, WindowConflictError
log, name = RelayLog.open(sys.argv[1]), sys.argv[3]
number = 0
while True:
    try:
        claim = log.claim("land")
        last = log.last()
        lo = last.hi if last else BASE
        while True:
            claim.check()
            number += 1
            token = f"{name}.{number}"
            changes = [batch([(lo + 1, 0), (lo + 2, 0)], row=token.encode())]
            part = log.write_part(lo, lo + 10, token, 0, changes)
            log.commit(window(lo, lo + 10, [part], token=token, transactions=2, changes=2))
            print(lo, token, flush=True)
            lo += 10
    except (ClaimLostError, WindowConflictError, OSError):
        continue
"""
COMMIT = """
import sys
sys.path.insert(0, sys.argv[2])
from relaykit import BASE, window
from sluice.relay import RelayLog, WindowConflictError
try:
    RelayLog.open(sys.argv[1]).commit(window(BASE, BASE + 20, token="first"))
    print("landed")
except WindowConflictError:
    print("conflict")
"""
FAULTS = (
    "slow:0.05:0.02 busy:0.02 failed:0.02 failed_after:0.05 lost:0.05 reset:0.02 lag:0.5:0.2"
    " cut:0.02 flipped:0.02"
)
_ENOUGH = 14
_WRITERS = 3


def _start(url: str, name: str) -> subprocess.Popen[str]:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", WRITER, url, here, name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path.cwd())


@pytest.mark.parametrize(
    ("kind", "said", "expected"), [("held", "conflict", [412]), ("held after", "landed", [200])]
)
def test_who_stands_still_between_a_put_and_its_answer_wakes_up_to_what_is_there(
    s3_server: S3Server, kind: str, said: str, expected: list[int]
) -> None:
    """The request of a stopped process is on its way, or done, while another one lands the same
    window.
    """
    log = RelayLog.open(s3_server.url())
    log.claim("land")
    held = Fault(kind, "PUT", f"{BASE:020d}.json", times=1)
    s3_server.inject(held)
    first = subprocess.Popen(
        [sys.executable, "-c", COMMIT, log.url, str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert held.is_held.wait(120)
    first.send_signal(signal.SIGSTOP)
    if kind == "held":
        log.commit(window(BASE, BASE + 30, token="second"))
    else:
        with pytest.raises(WindowConflictError):
            log.commit(window(BASE, BASE + 30, token="second"))
    landed = log.next(BASE)
    assert held.release() == expected
    first.send_signal(signal.SIGCONT)
    assert first.communicate(timeout=120)[0] == f"{said}\n"
    assert log.next(BASE) == landed and list(log.windows(BASE)) == [landed]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_whoever_dies_or_sleeps_what_was_said_to_be_landed_is_what_is_there(
    s3_server: S3Server, seed: int
) -> None:
    rng = random.Random(seed)
    url = s3_server.url()
    s3_server.inject(*faults(FAULTS, seed))
    writers = [_start(url, f"w{n}") for n in range(_WRITERS)]
    log = RelayLog.open(url)
    ended: list[str] = []
    try:
        while (seen := log.last()) is None or seen.hi - log_begin(log) < 10 * _ENOUGH:
            one = rng.choice(writers)
            one.send_signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0, 0.5))
            one.send_signal(signal.SIGCONT)
            if rng.random() < 0.2 and len(ended) < 3:
                one.kill()
                assert one.stdout is not None
                ended.append(one.stdout.read())
                one.wait()
                writers[writers.index(one)] = _start(url, f"x{len(ended)}")
    finally:
        for one in writers:
            one.kill()
            assert one.stdout is not None
            ended.append(one.stdout.read())
            one.wait()
    s3_server.heal()
    announced = [
        tuple(line.split()) for text in ended for line in text.splitlines() if line.count(" ") == 1
    ]
    windows = {str(found.lo): found for found in log.windows(log_begin(log))}
    assert len(announced) >= _ENOUGH // 2
    assert [told for told in announced if windows[told[0]].token != told[1]] == []
    # no two were told that they had landed the same
    assert len({lo for lo, _ in announced}) == len(announced)
    for found in windows.values():
        rows = log.read([found])
        assert rows["commit_ts"].to_pylist() == [found.lo + 1, found.lo + 2]
        assert all(
            row.startswith(found.token.encode())
            for row in rows.column(rows.num_columns - 1).to_pylist()
        )


def log_begin(log: RelayLog) -> int:
    """Where the chain begins (TSO)."""
    first = log.first()
    assert first is not None
    return first.lo
