"""Invented histories restored to their noted moments, whole and in part: as the model is then."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sluice.etl.restore import FilesRequest, RestoreRequest
from sluice.tidb.table_name import exactly, full_name
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import land
from tests.etl.restore.restoring import archived, restore, restore_files, settings_of, snapshot_at
from tests.judge import recording
from tests.judge.features import FEATURES
from tests.judge.invent import History
from tests.judge.invented_tidb import Name, State
from tests.judge.verdict import compare
from tests.object_store.s3_server import S3Server

_IN_RESTORES = [each for each in FEATURES if each not in {"routes", "merged"}]
"""A restore has names of its own."""


def renamed(state: State) -> State:
    """Under the names that a restore gives."""
    return {(f"{schema}_restored", table): rows for (schema, table), rows in state.items()}


def asked(name: Name) -> str:
    """As a person asks for a table."""
    return exactly(full_name(*name))


def check(seed: int, server: MariaDBServer, folder: Path) -> list[str]:
    """What is otherwise than in the model."""
    rng = random.Random(seed)
    upstream = History(random.Random(seed), _IN_RESTORES).grow(rng.choice((15, 25, 40)))
    recording.write(upstream, folder / "recording")
    relay = land(
        folder / "recording", f"file://{folder}/relay", transactions=rng.choice((1, 3, 10, 1000))
    )
    archived(relay, rng.choice((1, 3, 1000)))
    settings = settings_of(server, relay.url)
    if seed % 2:
        snapshot_at(settings, rng.choice(upstream.states[: len(upstream.states) // 2 + 1])[0])
    found = []
    for ts, state in upstream.states:
        names = sorted(state)
        for chosen in filter(None, [names, rng.sample(names, min(len(names), rng.choice((1, 2))))]):
            wanted = {name: state[name] for name in chosen}
            server.empty()
            restore(settings, RestoreRequest(ts, tuple(map(asked, chosen))))
            found += [
                f"seed {seed}, {ts}, {chosen}: {one}" for one in compare(renamed(wanted), server)
            ]
    return found


@pytest.mark.slow
def test_from_an_object_store_it_is_restored_the_same_with_a_snapshot_and_as_files(
    mariadb: MariaDBServer, tmp_path: Path, s3_server: S3Server
) -> None:
    upstream = History(random.Random(5), _IN_RESTORES).grow(12)
    recording.write(upstream, tmp_path / "recording")
    relay = land(tmp_path / "recording", s3_server.url("relay"), transactions=3)
    archived(relay)
    settings = settings_of(mariadb, relay.url)
    snapshot_at(settings, upstream.states[len(upstream.states) // 2][0])
    ts, state = upstream.states[-1]
    names = sorted(state)
    mariadb.empty()
    assert restore(settings, RestoreRequest(ts, tuple(map(asked, names)))).verified.tables == len(
        names
    )
    assert compare(renamed({name: state[name] for name in names}), mariadb) == []
    files = restore_files(settings, FilesRequest(ts, tuple(map(asked, names)), tmp_path / "files"))
    assert {table.name: table.rows for table in files.tables} == {
        full_name(*name): state[name][1].total() for name in names
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_invented_history_is_restored_to_any_moment_whole_and_in_part_with_a_snapshot_or_without(
    mariadb: MariaDBServer, tmp_path: Path, seed: int
) -> None:
    assert check(seed, mariadb, tmp_path) == []
