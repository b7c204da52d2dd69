"""Measure what this machine can do by itself, by bare programs, in a minute.

So that it can be given beside any benchmark.

python -m sluice.bench.limits [disk] [wire] [database] [processor]

Machines differ by a factor of three from day to day, and a benchmark's figures with them; their
shares of what the machine does by itself in the same minutes differ far less. All parts take their
figures in turns, five rounds of half a second each, on the disk of the state folder. Median, least
and most of the rounds are printed, and kept as JSON beside what `sluice bench` keeps.
docs/reference/performance/limits.md lists which figure is the limit of which stage.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from sluice.bench.limits import Figures, Probe
from sluice.bench.limits.database import database
from sluice.bench.limits.disk import disk
from sluice.bench.limits.processor import processor
from sluice.bench.limits.wire import wire
from sluice.bench.results import document, keep, shown
from sluice.devstack.repository import default_home
from sluice.devstack.state import StackError

_PARTS: dict[str, Probe] = {
    "disk": disk,
    "wire": wire,
    "database": database,
    "processor": processor,
}
_ROUNDS = 5


def measure(home: Path, parts: Sequence[str], seconds: float) -> dict[str, Figures]:
    """Return `median`, `least` and `most` of the rounds by figure, of the parts of these names.

    `seconds` is what a figure takes in a round. Works in a folder in `home`. Raises StackError,
    OSError, RuntimeError.
    """
    folder = home / "limits"
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as entered:
        takes = [entered.enter_context(_PARTS[name](folder)) for name in parts]
        rounds = [
            {name: value for take in takes for name, value in take(seconds).items()}
            for _ in range(_ROUNDS)
        ]
    values = {name: [each[name] for each in rounds] for name in rounds[0]}
    return {
        "median": {name: statistics.median(each) for name, each in values.items()},
        "least": {name: min(each) for name, each in values.items()},
        "most": {name: max(each) for name, each in values.items()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; exit code 1 if something that it needs can't be started."""
    parser = argparse.ArgumentParser(
        prog="python -m sluice.bench.limits", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(_PARTS)} [all]")
    parser.add_argument("--home", type=Path, help="the state folder [as `sluice` has it]")
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="what a figure takes in each round [0.5]"
    )
    arguments = parser.parse_args(argv)
    if unknown := sorted(set(arguments.parts) - set(_PARTS)):
        parser.error(f"{', '.join(unknown)}: there are {', '.join(_PARTS)}")
    home = (arguments.home or default_home()).absolute() / "bench"
    try:
        found = measure(home, arguments.parts or list(_PARTS), arguments.seconds)
    except StackError as error:
        print(error, file=sys.stderr)
        return 1
    whole = document("limits", found)
    print(f"{'figure':<40}{'median':>14}{'least':>14}{'most':>14}")
    for name, median in found["median"].items():
        values = (median, found["least"][name], found["most"][name])
        print(f"{name:<40}" + "".join(f"{shown(each):>14}" for each in values))
    print(
        f"\n{whole['environment']['machine']}, load {whole['load'][0]:g}\nkept as"
        f" {keep(home / 'results', whole)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
