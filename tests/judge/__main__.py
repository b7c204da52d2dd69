"""`python -m tests.judge`: judges random histories for as long as wanted, and says what goes wrong
and what it needs to.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.etl.mariadb_fixture import MariaDBServer
from tests.judge.features import FEATURES
from tests.judge.invent import History
from tests.judge.invent_rules import invent_rules
from tests.judge.invented_tidb import Upstream
from tests.judge.neighbour import neighbour
from tests.judge.rules import Rules
from tests.judge.verdict import Verdict, judge


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.judge", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="the first history's number; the others count on; 0: any",
    )
    parser.add_argument(
        "--steps", type=int, default=25, help="statements and transactions a history"
    )
    parser.add_argument("--mode", choices=("atomic", "parallel", "both"), default="both")
    parser.add_argument(
        "--kills", type=float, default=0.3, help="how likely an attempt is to come to harm, 0 to 1"
    )
    parser.add_argument(
        "--drainer",
        type=float,
        default=0.2,
        help="how likely a killed Drainer was there before, 0 to 1",
    )
    parser.add_argument(
        "--capture",
        type=float,
        default=0.3,
        help="how likely TiKV's change data is landed in place of binlogs, 0 to 1",
    )
    parser.add_argument(
        "--rules",
        type=float,
        default=0.5,
        help="how likely the settings have rules for rows, columns and tables, 0 to 1",
    )
    parser.add_argument(
        "--features",
        nargs="*",
        default=list(FEATURES),
        help="what may be in a history: " + ", ".join(FEATURES),
    )
    parser.add_argument(
        "--alone", action="store_true", help="one feature a history, in turn, with what it needs"
    )
    parser.add_argument("--once", action="store_true", help="only the history of --seed")
    parser.add_argument("--tell", action="store_true", help="print the histories too")
    parser.add_argument(
        "--neighbour",
        action="store_true",
        help="somebody else locks rows downstream now and then, no two times alike",
    )
    parser.add_argument(
        "--server",
        nargs="*",
        default=[],
        help="options of the MariaDB server, such as explicit-defaults-for-timestamp=OFF",
    )
    arguments = parser.parse_args()
    arguments.seed = arguments.seed or random.SystemRandom().randrange(1, 10**9)
    print(f"first seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        server = MariaDBServer(
            Path(folder) / "mariadb", *(f"--{option}" for option in arguments.server)
        )
        server.start()
        try:
            with neighbour(server) if arguments.neighbour else contextlib.nullcontext():
                return _run(arguments, server, Path(folder))
        finally:
            server.kill()


_NEEDS = {
    "exchange": ("partitions", "heap tables", "nonclustered"),
    "late rows": ("partitions",),
    "reorganize": ("partitions", "heap tables", "nonclustered", "lists", "late rows"),
    "old collations": ("collations", "heap tables", "nonclustered", "swaps"),
    "lists": ("partitions", "late rows", "exchange"),
    "several at once": ("modify type",),
    "second schema": ("like",),
    "generated timestamp": ("timestamps",),
    "spelled defaults": ("add column",),
    "odd defaults": ("add column",),
    "other sessions": ("several at once", "add column", "drop column", "modify type", "drop table"),
    "races": ("add column",),
    "dotted schemas": ("second schema", "rename"),
    "many tables": ("alike tables",),
    "duplicates": ("heap tables", "crowds"),
}


def _run(arguments: argparse.Namespace, server: MariaDBServer, folder: Path) -> int:
    end = time.monotonic() + arguments.minutes * 60
    counts: Counter[str] = Counter()
    seed = arguments.seed
    slowest = (0.0, seed)
    while time.monotonic() < end:
        features = (
            [arguments.features[seed % len(arguments.features)]]
            if arguments.alone
            else arguments.features
        )
        if arguments.alone:
            features = [*features, *_NEEDS.get(features[0], ())]
        mode = (
            ("atomic", "parallel")[seed // len(FEATURES) % 2]
            if arguments.mode == "both"
            else arguments.mode
        )
        captured = is_captured(seed, arguments.capture)
        rules = None
        began = time.monotonic()
        history = History(random.Random(seed), features)
        try:
            upstream = history.grow(arguments.steps)
            likely = arguments.kills, arguments.drainer
            rules = rules_of(seed, arguments.rules, upstream)
            if rules is not None:
                rules.is_captured = captured
            verdict = trial(
                upstream, seed, mode, likely, server, folder, captured=captured, rules=rules
            )
        except Exception as error:  # the judge's own fault: the seed has to be known
            traceback.print_exc()
            verdict = Verdict(stopped=f"the judge failed: {type(error).__name__}: {error}")
        if arguments.tell:
            print(*history.upstream.story, sep="\n")
            print(rules and (rules.document(), rules.targets))
        counts[verdict.outcome] += 1
        counts["kills"] += verdict.kills
        if not verdict.good:
            label = features[0] if arguments.alone else "all"
            what = (
                f"stopped: {verdict.stopped}"
                if verdict.stopped
                else "DIFFERENT: " + "; ".join(verdict.differences)
            )
            way = f"{mode}, captured" if captured else mode
            way += ", rules" if rules else ""
            print(f"seed {seed} ({label}, {way}): {what[:700]}", flush=True)
        slowest = max(slowest, (time.monotonic() - began, seed))
        seed += 1
        if arguments.once:
            break
    again = " ".join(
        f"--{name} {getattr(arguments, name)}"
        for name in ("steps", "mode", "kills", "drainer", "capture", "rules")
    )
    print(
        ", ".join(f"{count} {what}" for what, count in counts.items())
        + f"; seeds {arguments.seed} to {seed - 1}; the slowest, {slowest[1]}, took"
        f" {slowest[0]:.1f} s; one again: python -m tests.judge --once --tell {again} --seed SEED"
    )
    return 1 if counts["DIFFERENT"] or counts["stopped"] else 0


def is_captured(seed: int, likely: float) -> bool:
    """Decide whether a history is captured; nothing else about it depends on that."""
    return random.Random(f"{seed} capture").random() < likely


def rules_of(seed: int, likely: float, upstream: Upstream) -> Rules | None:
    """Return the rules for a history, None for none; nothing else about it depends on that."""
    rng = random.Random(f"{seed} rules")
    return invent_rules(upstream, rng) if rng.random() < likely else None


def trial(
    upstream: Upstream,
    seed: int,
    mode: str,
    likely: tuple[float, float],
    server: MariaDBServer,
    folder: Path,
    *,
    captured: bool = False,
    rules: Rules | None = None,
) -> Verdict:
    """Judge a history; `seed` decides on windows, and how `likely` kills and Drainers are."""
    with tempfile.TemporaryDirectory(prefix=f"{seed}-", dir=folder) as place:
        rng = random.Random(seed + 1)
        return judge(
            upstream, server, Path(place), mode, rng, *likely, is_captured=captured, rules=rules
        )


if __name__ == "__main__":
    sys.exit(main())
