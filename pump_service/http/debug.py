"""Serve the `/debug` pages: stacks, memory and profile of the process, and single binlogs."""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
from collections import Counter
from types import FrameType

import psutil

from sluice.tidb import pb
from sluice.tidb.tikv import Mvcc

INDEX = """GET  /debug/stack              what every thread does right now
GET  /debug/memory             size of the process, and what it holds most of
GET  /debug/profile?seconds=5  where the time goes: one line a stack with its samples, as flame
                               graph tools read it
GET  /debug/binlog/<ts>        the binlog at a start or commit timestamp, and what TiKV knows of
                               its primary key
POST /debug/gc/trigger         start garbage collection now
"""

_SAMPLE_INTERVAL_S = 0.01
_REST = 20
_MAX_STACKS = 5000  # different ones, 1 or 2 KiB each
_OVERFLOW_STACK = "(more stacks than are kept)"
_MAX_PROFILE_S = 120.0
_KINDS: dict[int, str] = {
    pb.tikv.Put: "put",
    pb.tikv.Del: "delete",
    pb.tikv.Lock: "lock",
    pb.tikv.Rollback: "rollback",
}


def stacks() -> str:
    """Return the stack of every Python thread."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "".join(
        f"thread {names.get(ident, '?')} ({ident})\n{''.join(traceback.format_stack(stack))}\n"
        for ident, stack in _frames().items()
    )


def _frames() -> dict[int, FrameType]:
    """Return the current frame of each thread.

    In CPython 3.11 before 3.11.9 a garbage collection inside the call could stop the whole process
    for good: it lets other threads run, one of which may begin or end a thread, and that waits for
    a lock that the call holds (gh-106883).
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collecting:
            gc.enable()


def memory() -> str:
    """Return bytes of the process, and the 30 most frequent types among its objects."""
    info = psutil.Process().memory_info()
    counts = Counter(type(item).__qualname__ for item in gc.get_objects())
    lines = [
        f"rss {info.rss}",
        f"vms {info.vms}",
        f"threads {threading.active_count()}",
        "objects tracked by type:",
    ]
    lines += [f"  {count:9d} {name}" for name, count in counts.most_common(30)]
    return "\n".join(lines) + "\n"


def profile(seconds: float, stop: threading.Event) -> str:
    """Sample all other threads for `seconds` (at most 120 s, or until `stop`).

    Returns lines of `thread;outer;inner <samples>`, the most frequent first.
    """
    seen: Counter[str] = Counter()
    me = threading.get_ident()
    end = time.monotonic() + min(seconds, _MAX_PROFILE_S)
    while (began := time.monotonic()) < end and not stop.is_set():
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in _frames().items():
            if ident == me:
                continue
            calls = []
            inner = frame
            while inner is not None:
                code = inner.f_code
                calls.append(
                    f"{code.co_qualname} ({code.co_filename.rsplit('/', 1)[-1]}:{inner.f_lineno})"
                )
                inner = inner.f_back  # type: ignore[assignment]
            stack = ";".join([names.get(ident, "?"), *reversed(calls)])
            seen[stack if stack in seen or len(seen) < _MAX_STACKS else _OVERFLOW_STACK] += 1
        # Nobody else runs while a sample is taken: with many threads it takes longer, so it is
        # taken less often.
        time.sleep(max(_SAMPLE_INTERVAL_S, (time.monotonic() - began) * _REST))
    return "".join(f"{stack} {count}\n" for stack, count in seen.most_common())


def binlog_text(binlog: pb.binlog.Binlog) -> str:
    """Return a binlog and, if it has one, its decoded prewrite value."""
    text = f"Binlog: {binlog}\n"
    if binlog.prewrite_value:
        text += f"\n PrewriteValue: {pb.binlog.PrewriteValue.FromString(binlog.prewrite_value)}\n"
    return text


def mvcc_text(mvcc: Mvcc) -> str:
    """Format what TiKV has of a key: its lock, and a line for each finished transaction."""
    lines = ["\n GetMvccByEncodedKey:"]
    if mvcc.lock is not None:
        lock = mvcc.lock
        lines.append(
            f"  lock start_ts: {lock.start_ts} primary: {lock.primary.hex()} ttl: {lock.ttl_ms} ms"
        )
    for write in mvcc.writes:
        kind = _KINDS.get(write.kind, str(write.kind))
        mark = " with an overlapped rollback" if write.overlapped_rollback else ""
        lines.append(f"  {kind} start_ts: {write.start_ts} commit_ts: {write.commit_ts}{mark}")
    if len(lines) == 1:
        lines.append("  TiKV has nothing of this key")
    return "\n".join(lines) + "\n"
