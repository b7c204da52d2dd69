"""A process that is killed or stands still at any step of a chunk leaves it done once or not at
all, and another one does it.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.etl.apply import run_apply
from sluice.relay import RelayLog, TableRepair
from tests.etl.apply.test_apply_random import fresh, settings_for
from tests.etl.chunk_model import Cut, Told, damage, found, make_ready
from tests.etl.freezer import Freezer, trace_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.random_history import TABLES

_POINTS = 4
_PIECES = (
    Cut("account", "id", None, 4),
    Cut("heap"),
    Cut("account", "id", 4, None),
    Cut("ci", "k", "b", None),
    Cut("ci", "k", None, "b"),
    Cut("parted"),
)


@pytest.fixture(scope="module")
def freezer() -> Iterator[Freezer]:
    with Freezer() as process:
        yield process


@dataclass
class Scene:
    """A downstream that is damaged at a checkpoint, and chunks that make it whole on the way to the
    end.
    """

    server: MariaDBServer
    folder: Path
    told: Told
    began: int
    until: int
    moments: list[int]

    @classmethod
    def of(cls, server: MariaDBServer, folder: Path) -> Scene:
        told = Told.of(8, 60)
        told.history.land(f"file://{folder}/relay", [7, 3])
        stamps = [ts for ts, _ in told.history.transactions]
        began, until = stamps[20], stamps[-1]
        moments = sorted(random.Random(3).sample(range(began, until), len(_PIECES)))
        relay = RelayLog.open(f"file://{folder}/relay")
        tables = tuple(TABLES[piece.table].id for piece in _PIECES)
        relay.aligned_chunks.begin_repair(TableRepair("job", "job", tables))
        for at_ts, piece in zip(moments, _PIECES):
            make_ready(relay, told, piece, at_ts, is_whole=True)
        return cls(server, folder, told, began, until, moments)

    def begin(self, name: str, mode: str) -> Path:
        """A folder with the relay, and the downstream as it is before the chunks."""
        run = self.folder / name
        shutil.copytree(self.folder / "relay", run / "relay")
        config = settings_for(self.server, f"file://{run}/relay", 6, mode)
        with contextlib.closing(fresh(self.server)) as connection:
            run_apply(config, until_ts=self.began, run_seconds=240, prepare=local_preparer(config))
            for piece in _PIECES:
                damage(connection, piece.table, random.Random(piece.table))
        return run

    def wrong(self) -> list[str]:
        """What differs at the end."""
        with contextlib.closing(self.server.connect()) as connection, connection.cursor() as cursor:
            names = [
                name
                for name in TABLES
                if found(connection, Cut(name)) != self.told.expected(self.until, Cut(name))
            ]
            cursor.execute("SELECT at_ts, result FROM tidb_binlog.sluice_chunks ORDER BY 1")
            notes = cursor.fetchall()
        names += [str(note) for note in notes if json.loads(note[1])["declined"]]
        return (
            names if [at_ts for at_ts, _ in notes] == self.moments else [*names, f"notes {notes}"]
        )


def points(freezer: Freezer, scene: Scene, mode: str) -> list[int]:
    """Steps of a process that nobody stops, between the beginning of its first chunk and the end of
    its last.
    """
    run = scene.begin(f"whole-{mode}", mode)
    pid = freezer.start(run, scene.server.port, scene.until, mode)
    assert freezer.wait(pid, 60) == "ended"
    steps = trace_of(run, pid)
    assert scene.wrong() == [], steps[-1]
    chunks = [n for n, step in enumerate(steps, 1) if "sluice_chunk" in step]
    numbers = list(range(chunks[0] - 2, chunks[-1] + 3))
    return [numbers[len(numbers) * n // _POINTS] for n in range(_POINTS)]


@pytest.mark.ci_cases("atomic-parallel")
@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [("atomic", "parallel"), ("parallel", "atomic")])
def test_a_process_killed_or_frozen_at_any_step_of_a_chunk_does_it_once_or_leaves_it_to_the_next(
    mariadb: MariaDBServer, tmp_path: Path, freezer: Freezer, first: str, second: str
) -> None:
    scene = Scene.of(mariadb, tmp_path)
    for number, stop in enumerate(points(freezer, scene, first)):
        run = scene.begin(f"{first}-{stop}", first)
        pid = freezer.start(run, mariadb.port, scene.until, first, stop)
        assert freezer.wait(pid, 60) == "stopped"
        at = trace_of(run, pid)[-1]
        if number % 2:
            freezer.kill(pid)
        other = freezer.start(run, mariadb.port, scene.until, second)
        assert freezer.wait(other, 60) == "ended", at
        assert scene.wrong() == [], (at, trace_of(run, other)[-1])
        if not number % 2:
            freezer.wake(pid)
            assert freezer.wait(pid, 60) == "ended", at
            assert scene.wrong() == [], (at, "after it was woken")
            assert f"end at {scene.until}" not in trace_of(run, pid)[-1], at
