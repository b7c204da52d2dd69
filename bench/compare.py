"""Compare two versions by what `sluice bench` wrote of each, in as many runs as there are.

python -m sluice.bench.compare BEFORE AFTER [--only REGEX]

BEFORE and AFTER are each a file of results or a folder with those of several runs. For each
figure: its median and range before and after, the ratio of the medians, and whether that is more
than the runs of one version differ among themselves. With one run of each nothing is known of
noise, and the report states that.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.bench.results import shown

_NAMES = ("case", "what", "form", "name")  # by which an item of a list is known


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of two versions, all runs of each."""

    name: str
    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def ratio(self) -> float | None:
        """Return the median after through the median before; None if that is 0."""
        base = statistics.median(self.before)
        return statistics.median(self.after) / base if base else None

    @property
    def verdict(self) -> str:
        """Return `differs` if no run of one version lies among the other's."""
        if min(len(self.before), len(self.after)) < 2:
            return "one run"
        apart = max(self.before) < min(self.after) or max(self.after) < min(self.before)
        return "differs" if apart else "noise"


def figures(found: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number in a result, with the names that lead to it."""
    if isinstance(found, bool):
        return
    if isinstance(found, int | float):
        yield path, float(found)
    elif isinstance(found, dict):
        for name, each in found.items():
            yield from figures(each, f"{path}.{name}" if path else str(name))
    elif isinstance(found, list):
        for number, each in enumerate(found):
            known = [each[name] for name in _NAMES if isinstance(each, dict) and name in each]
            yield from figures(each, f"{path}[{known[0] if known else number}]")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the results in a file, or in all files of a folder.

    ValueError if there is none, or one is of something else.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    runs = [json.loads(file.read_text()) for file in files]
    if not runs:
        raise ValueError(f"{path}: no results; `sluice bench` prints where it wrote them")
    for file, run in zip(files, runs, strict=True):
        if "benchmark" not in run or "found" not in run:
            raise ValueError(f"{file}: this is no result of `sluice bench`")
    names = sorted({run["benchmark"] for run in runs})
    if len(names) > 1:
        raise ValueError(
            f"{path}: results of several benchmarks ({', '.join(names)}); give each a folder of"
            " its own"
        )
    return runs


def compare(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[Figure]:
    """Return the figures that every run of both has."""
    tables = [[dict(figures(run["found"])) for run in runs] for runs in (before, after)]
    shared = set.intersection(*(set(table) for runs in tables for table in runs))
    return [
        Figure(name, *(tuple(t[name] for t in runs) for runs in tables))
        for name in tables[0][0]
        if name in shared
    ]


def differences(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[str]:
    """Return what makes the comparison doubtful.

    That is other machines, other benchmarks, and cores that others used.
    """
    found = []
    for what in ("benchmark", "environment"):
        values = [json.dumps(run[what], sort_keys=True) for run in (*before, *after)]
        if len(set(values)) > 1:
            found.append(f"not all runs have the same {what}")
    busiest = max(run["load"][0] for run in (*before, *after))
    if busiest > 8:
        found.append(
            f"the load was up to {busiest:.0f} when a run ended: compare CPU time, not rates"
        )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; exit code 2 for results that can't be compared."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", type=re.compile, help="figures whose name this expression finds")
    arguments = parser.parse_args(argv)
    try:
        before, after = read(arguments.before), read(arguments.after)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    for name, runs in (("before", before), ("after", after)):
        commits = ", ".join(sorted({run["commit"] for run in runs}))
        print(
            f"{name:<7} {runs[0]['benchmark']}, {len(runs)} run{'s' * (len(runs) > 1)} of {commits}"
        )
    for line in differences(before, after):
        print(f"beware: {line}")
    print()
    print(f"{'figure':<44}{'before':>30}{'after':>30}{'ratio':>8}")
    for figure in compare(before, after):
        if arguments.only is None or arguments.only.search(figure.name):
            ratio = "-" if figure.ratio is None else f"{figure.ratio:.2f}"
            print(
                f"{figure.name:<44}{_range(figure.before):>30}{_range(figure.after):>30}{ratio:>8} "
                f" {figure.verdict}"
            )
    return 0


def _range(values: tuple[float, ...]) -> str:
    middle = shown(statistics.median(values))
    return middle if len(values) < 2 else f"{middle} ({shown(min(values))} to {shown(max(values))})"


if __name__ == "__main__":
    sys.exit(main())
