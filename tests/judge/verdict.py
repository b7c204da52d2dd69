"""Lets the pipeline work on a history, killing it now and then, and compares the downstream with
the model.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sluice.errors import SluiceError
from sluice.etl.downstream import CheckpointMovedError
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import land
from tests.judge import attempt, recording
from tests.judge.attempt import Harm, Plan
from tests.judge.capturing import record_captured
from tests.judge.drainer import break_off, may_stop
from tests.judge.invented_tidb import Name, State, Upstream
from tests.judge.kinds import Kind
from tests.judge.rules import Refusal, Rules
from tests.judge.tables import SYSTEM_SCHEMAS, quoted

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.judge.attempt"])
_PATIENCE_S = 120
_SEVERAL_PUMPS = 0.4
_WAKES_S = (0.1, 0.5, 1000.0)
_LOOK_S = 0.02


@dataclass(frozen=True)
class Verdict:
    """`differences`: what the downstream holds otherwise though the pipeline said it was done.

    `stopped`: the error with which the pipeline refused to go on, "" if it didn't. `untold`: the
    error of a takeover that had to stop, as nothing told how far the Drainer had come. `ts`: the
    moment compared.
    """

    differences: tuple[str, ...] = ()
    stopped: str = ""
    ts: int = 0
    kills: int = 0
    untold: str = ""
    refused: str = ""
    """The error of a DDL at which rules had to stop."""

    @property
    def good(self) -> bool:
        """Equal everywhere, or stopped where it had to."""
        return self.outcome in ("good", "untold", "refused")

    @property
    def outcome(self) -> str:
        """In a word."""
        if self.differences:
            return "DIFFERENT"
        if self.stopped:
            return "stopped"
        return "untold" if self.untold else "refused" if self.refused else "good"


def judge(
    upstream: Upstream,
    server: MariaDBServer,
    folder: Path,
    mode: str,
    rng: random.Random,
    kills: float = 0.0,
    drainer: float = 0.0,
    *,
    is_captured: bool = False,
    rules: Rules | None = None,
) -> Verdict:
    """Land the history, of one pump or several, in windows of a random size and apply it in `mode`
    to each noted moment. `kills`: how likely an attempt is to be killed, to lose a connection, or
    to stand still while another one takes over; after a kill the other mode may go on. Nothing may
    be refused, but what a Drainer left untold (`may_stop`): a second attempt that goes well excuses
    nothing. `is_captured`: TiKV's change data are landed in place of binlogs. `rules` are the
    settings'; at a DDL that they refuse, and at no other, the pipeline has to stop.
    """
    rules = rules or Rules()
    stop = rules.refusal(upstream)
    routes, filters = (*rules.routes(), *upstream.routes()), rules.document()
    recording.write(upstream, folder / "recording")
    if is_captured:
        record_captured(upstream, folder / "recording", rng)
    url = f"file://{folder}/relay"
    spread = rng if rng.random() < _SEVERAL_PUMPS else None
    try:
        transactions = rng.choice((1, 3, 10, 1000))
        land(folder / "recording", url, transactions, spread=spread, until=upstream.committed)
    except SluiceError as error:
        return Verdict(stopped=f"landing: {type(error).__name__}: {error}")
    server.empty()
    max_rows, cut_tables = rng.choice((1, 20, 100_000)), rng.choice((0, 0, 1, 2, 4))
    killed, broken = 0, None
    if rng.random() < drainer and not filters:

        def apply_until(ts: int) -> None:
            if error := _attempt(Plan(url, server.port, ts, mode, max_rows, routes)):
                raise RuntimeError(error)

        try:
            broken = break_off(upstream, server, folder / "relay", rng, apply_until)
        except RuntimeError as error:
            return Verdict(stopped=str(error))
    for (ts, _), shown in zip(upstream.states, upstream.shown, strict=True):
        if broken is not None and ts < broken.reached:
            continue
        while True:
            harm = (
                Harm(
                    rng.randint(1, 90),
                    rng.choice(("killed", "killed", "cut", "stopped")),
                    rng.choice(_WAKES_S),
                )
                if rng.random() < kills
                else Harm()
            )
            error = _attempt(
                Plan(url, server.port, ts, mode, max_rows, routes, harm, filters, cut_tables)
            )
            if error is None:
                killed += 1
                mode = rng.choice(("atomic", "parallel")) if rng.random() < 0.3 else mode
                continue
            if error:
                if stop is not None and ts >= stop.ts and is_refusal(error, stop):
                    return Verdict(ts=ts, kills=killed, refused=error)
                if broken is not None and may_stop(error):
                    return Verdict(ts=ts, kills=killed, untold=error)
                return Verdict(stopped=error, ts=ts, kills=killed)
            break
        if stop is not None and ts >= stop.ts:
            return Verdict((f"DDL job {stop.job} wasn't refused: {stop.why}",), ts=ts, kills=killed)
        found = tuple(compare(rules.state(upstream, ts, shown), server))
        if found:
            return Verdict(found, ts=ts, kills=killed)
    return Verdict(kills=killed)


def is_refusal(error: str, stop: Refusal) -> bool:
    """Return whether the error names the DDL and a rule."""
    # of a multi-schema change it may be an earlier one: rows that know it come before it
    return f"DDL job {stop.job} at commit_ts " in error and "[[filter." in error


def _attempt(plan: Plan) -> str | None:
    """The error's text, "" if all went well, None if the process was killed."""
    ours, theirs = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=attempt.run, args=(plan, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if (
            plan.harm.how == "stopped"
            and process.pid is not None
            and _stands_still(process.pid, ours)
        ):
            return _taken_over(plan, process.pid, ours)
        return (
            str(ours.recv())
            if ours.poll(_PATIENCE_S)
            else f"nothing was heard of it for {_PATIENCE_S} s"
        )
    except EOFError:
        process.join(_PATIENCE_S)
        return (
            None
            if plan.harm.at and process.exitcode == -signal.SIGKILL
            else f"the process ended with {process.exitcode}"
        )
    finally:
        process.kill()
        process.join()
        ours.close()


def _stands_still(pid: int, ours: Connection) -> bool:
    """Once it does; False once it has answered, or ended."""
    end = time.monotonic() + _PATIENCE_S
    while not ours.poll(_LOOK_S) and time.monotonic() < end:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return True
    return False


def _taken_over(plan: Plan, pid: int, ours: Connection) -> str | None:
    """What becomes of another attempt while a process stands still, which wakes in the end at the
    latest. One of the two goes on, mostly the other one: a process that stood still before it
    claimed the checkpoint may do so when it wakes. The one that lost it has to say that, and
    nothing else.
    """
    wakes = threading.Timer(plan.harm.wakes_s, _wake, (pid,))
    wakes.start()
    try:
        theirs = _attempt(replace(plan, harm=Harm()))
    finally:
        wakes.cancel()
        _wake(pid)
    try:
        own = (
            str(ours.recv())
            if ours.poll(_PATIENCE_S)
            else f"it stood still, and was not heard of for {_PATIENCE_S} s"
        )
    except EOFError:
        own = "it stood still, and ended without a word"
    if own and theirs:
        return f"both processes stopped: {own}; {theirs}"
    lost = own or theirs
    return "" if not lost or _has_moved(lost) else f"of two processes one stopped: {lost}"


def _has_moved(error: str) -> bool:
    return (
        error.startswith(f"{CheckpointMovedError.__name__}: ")
        and "has taken over from this one" in error
    )


def _wake(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has woken, and ended, already
        os.kill(pid, signal.SIGCONT)


def compare(state: State, server: MariaDBServer) -> list[str]:
    """A line for each table that isn't as in `state`, and for each that shouldn't be there."""
    found = []
    connection = server.connect(conv={}, use_unicode=False, init_command="SET time_zone='+00:00'")
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE='BASE"
            f" TABLE' AND TABLE_SCHEMA NOT IN ({SYSTEM_SCHEMAS})"
        )
        there = {(schema.decode(), name.decode()) for schema, name in cursor.fetchall()}
        cursor.execute("SELECT @@lower_case_table_names")
        if cursor.fetchone() == (b"1",):
            state = {
                (schema.lower(), table.lower()): found for (schema, table), found in state.items()
            }
        found += [
            f"{'.'.join(map(quoted, pair))}: not upstream" for pair in sorted(there - state.keys())
        ]
        for pair, (columns, rows) in state.items():
            name = ".".join(map(quoted, pair))
            if pair not in there:
                found.append(f"{name}: missing")
                continue
            got = _read(cursor, pair, columns)
            if isinstance(got, str):
                found.append(f"{name}: {got}")
            elif got != rows:
                found.append(
                    f"{name}: missing {list((rows - got).items())[:3]}, too many"
                    f" {list((got - rows).items())[:3]}"
                )
    return found


def _read(cursor: Any, name: Name, columns: dict[str, Kind]) -> Counter[tuple[Any, ...]] | str:
    cursor.execute(
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s"
        " ORDER BY ORDINAL_POSITION",
        name,
    )
    there = [column.decode() for (column,) in cursor.fetchall()]
    if there != list(columns):
        return f"columns {there}, {list(columns)} upstream"
    select = ", ".join(
        f"{quoted(c)}+0e0" if k.family == "float" else quoted(c) for c, k in columns.items()
    )
    cursor.execute(f"SELECT {select} FROM {'.'.join(map(quoted, name))}".encode())
    return Counter(
        tuple(kind.read(value) for kind, value in zip(columns.values(), row))
        for row in cursor.fetchall()
    )
