"""Random histories end downstream as in the model: a little of what `python -m tests.judge` does
for hours.

Most are always the same; a few are new in each run, which names their seed.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.tidb.tikv import Mvcc
from tests.etl.mariadb_fixture import MariaDBServer, mariadb_server  # noqa: F401 - a fixture
from tests.etl.relay_from_recording import asked_of
from tests.examples import examples
from tests.judge import recording
from tests.judge.__main__ import _run, rules_of, trial
from tests.judge.features import FEATURES
from tests.judge.invent import History
from tests.judge.kinds import DAYS, PLAIN
from tests.judge.verdict import judge
from tests.judge.writing import without_odd_bytes

_FEATURES = st.sets(st.sampled_from(FEATURES), min_size=1, max_size=6)


NUMBERS = [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))]
"""Two of them are one history in each mode."""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
@settings(
    max_examples=examples(5),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    rng=st.randoms(use_true_random=False),
    features=_FEATURES,
    steps=st.integers(5, 25),
    seed=st.integers(0, 2**32),
)
def test_an_invented_history_ends_downstream_as_in_the_model(
    tmp_path_factory: pytest.TempPathFactory,
    mariadb_server: MariaDBServer,  # noqa: F811
    mode: str,
    rng: random.Random,
    features: set[str],
    steps: int,
    seed: int,
) -> None:
    upstream = History(rng, sorted(features)).grow(steps)
    verdict = judge(
        upstream, mariadb_server, tmp_path_factory.mktemp("judge"), mode, random.Random(seed)
    )
    assert verdict.good, verdict


@pytest.mark.ci_cases("[1]", "[3]")
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2, 3))]
)
def test_a_history_ends_so_however_often_the_process_is_killed_and_whichever_mode_goes_on(
    tmp_path: Path,
    mariadb_server: MariaDBServer,  # noqa: F811
    seed: int,
) -> None:
    upstream = History(random.Random(seed)).grow(20)
    verdict = judge(
        upstream,
        mariadb_server,
        tmp_path,
        ("atomic", "parallel")[seed % 2],
        random.Random(seed),
        kills=0.7,
    )
    assert verdict.good, verdict


@pytest.mark.parametrize("number", NUMBERS)
def test_a_history_that_no_run_before_has_had_ends_downstream_as_in_the_model(
    tmp_path: Path,
    mariadb_server: MariaDBServer,  # noqa: F811
    pytestconfig: pytest.Config,
    number: int,
) -> None:
    """If it fails: python -m tests.judge --once --tell --kills 0.3 --drainer 0 --capture 0 --mode
    MODE --seed SEED.
    """
    seed = pytestconfig.getoption("judge_seed") + number
    mode = ("atomic", "parallel")[seed % 2]
    upstream = History(random.Random(seed)).grow(25)
    verdict = trial(upstream, seed, mode, (0.3, 0), mariadb_server, tmp_path)
    assert verdict.good, (seed, mode, verdict)


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
def test_a_captured_history_that_no_run_before_has_had_ends_downstream_as_in_the_model(
    tmp_path: Path,
    mariadb_server: MariaDBServer,  # noqa: F811
    pytestconfig: pytest.Config,
    number: int,
) -> None:
    """If it fails: python -m tests.judge --once --tell --kills 0.3 --drainer 0 --capture 1 --mode
    MODE --seed SEED.
    """
    seed = pytestconfig.getoption("judge_seed") + number
    mode = ("atomic", "parallel")[seed % 2]
    upstream = History(random.Random(seed), FEATURES).grow(25)
    verdict = trial(upstream, seed, mode, (0.3, 0), mariadb_server, tmp_path, captured=True)
    assert verdict.good, (seed, mode, verdict)


@pytest.mark.parametrize(
    "seed", [10, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (34, 35))]
)
def test_a_history_ends_downstream_as_the_settings_rules_say(
    tmp_path: Path,
    mariadb_server: MariaDBServer,  # noqa: F811
    seed: int,
) -> None:
    upstream = History(random.Random(seed)).grow(20)
    rules = rules_of(seed, 1, upstream)
    assert rules is not None and rules.rows and rules.columns and rules.targets
    mode = ("atomic", "parallel")[seed % 2]
    verdict = trial(upstream, seed, mode, (0.3, 0), mariadb_server, tmp_path, rules=rules)
    assert verdict.outcome == ("refused" if rules.refusal(upstream) else "good"), verdict


def test_histories_have_rules_of_each_kind() -> None:
    kinds: Counter[str] = Counter()
    for seed in (34, 44):
        upstream = History(random.Random(seed)).grow(20)
        rules = rules_of(seed, 1, upstream)
        assert rules is not None
        kinds["changes"] += sum(rule.is_of_changes for rule in rules.rows)
        kinds["rows"] += sum(not rule.is_of_changes for rule in rules.rows)
        kinds["targets"] += len(rules.targets)
        for rule in rules.columns:
            for kind in ("leave_out", "keep", "rename", "mask", "add"):
                kinds[kind] += len(getattr(rule, kind))
            kinds["marks"] += bool(rule.keeping and rule.keeping.mark)
            kinds["versions"] += bool(rule.keeping and not rule.keeping.mark)
    assert set(kinds) == {
        "changes", "rows", "targets", "leave_out", "keep", "rename", "mask", "add", "marks",
        "versions",
    } and all(kinds.values()), kinds  # fmt: skip


@pytest.mark.ci_cases("parallel")
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_a_history_goes_on_from_where_a_killed_drainer_broke_off(
    tmp_path: Path,
    mariadb_server: MariaDBServer,  # noqa: F811
    mode: str,
) -> None:
    equal = 0
    for seed in range(4):
        upstream = History(random.Random(seed)).grow(15)
        verdict = judge(
            upstream, mariadb_server, tmp_path / str(seed), mode, random.Random(seed), drainer=1
        )
        assert verdict.good, (seed, verdict)
        equal += not verdict.untold
    assert equal


def test_a_char_ends_with_no_blank_that_stood_before_an_odd_byte() -> None:
    char = next(kind for kind in PLAIN if kind.sql == "CHAR(9)")
    varchar = next(kind for kind in PLAIN if kind.tp == 15)
    assert (without_odd_bytes(b"a \t", char), without_odd_bytes(b"a \t", varchar)) == (b"a", b"a ")


def test_a_new_column_of_texts_that_say_a_day_has_such_a_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another statement makes a DATETIME of it."""
    history = History(random.Random(0), ["add column"])
    history.grow(5)
    monkeypatch.setattr(history, "_kind", lambda choices: DAYS)
    table = next(iter(history.upstream.tables.values()))
    for _ in range(10):
        history._adding(table, 0)[1]()
    added = [column.default for column in table.columns if column.kind is DAYS and column.default]
    assert added and all(b"-" in default for default in added)


def test_a_history_that_cannot_be_invented_is_named_by_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(History, "grow", lambda history, steps: 1 // 0)
    arguments = argparse.Namespace(
        minutes=1,
        seed=77,
        steps=1,
        mode="both",
        features=["add column"],
        kills=0,
        drainer=0,
        capture=0,
        rules=1,
        alone=True,
        once=True,
        tell=True,
    )
    assert _run(arguments, None, tmp_path) == 1  # type: ignore[arg-type] # it needs no server
    assert "seed 77 (add column, " in capsys.readouterr().out


def test_a_recording_of_a_history_says_where_rows_were_written_behind_an_exchange_of_partitions(
    tmp_path: Path,
) -> None:
    upstream = History(
        random.Random(0), [each for each in FEATURES if each not in {"routes", "merged"}]
    ).grow(25)
    recording.write(upstream, tmp_path / "recording")
    written = {key: Mvcc(None, tuple(writes)) for key, writes in upstream.writes.items()}
    assert written and asked_of(tmp_path / "recording")(written) == written
