"""Draw what `sluice.bench.endurance` found: one panel a figure over the same hours.

Kills are marks below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

__all__ = ["endurance"]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _GAP = 960, 130, 70, 150, 56, 44
_COLOURS = ("#0b6e99", "#c2571a", "#3f7d20", "#8a3ffc", "#b8002e", "#5b6770")


@dataclass(frozen=True, slots=True)
class _Panel:
    """Lines by name: (s, value or None where there is none).

    `steps`: each tenfold value is as much higher.
    """

    title: str
    lines: dict[str, list[tuple[float, float | None]]]
    steps: bool = False


def endurance(found: dict[str, Any]) -> str:
    """Return an SVG of the samples of an `Endured` as a dict."""
    samples, course = found["samples"], found["course"]

    def line(value: Callable[[dict[str, Any]], float | None]) -> list[tuple[float, float | None]]:
        return [(sample["at_s"], value(sample)) for sample in samples]

    def by_name(field: str, names: Iterable[str]) -> dict[str, list[tuple[float, float | None]]]:
        return {name: line(lambda sample, name=name: sample[field].get(name)) for name in names}  # type: ignore[misc]

    memory = list(dict.fromkeys(name for sample in samples for name in sample["memory"]))
    stores = list(dict.fromkeys(name for sample in samples for name in sample["files"]))
    panels = [
        _Panel(
            "transactions/s that became visible downstream",
            {"rate": line(lambda each: each["rate"])},
        ),
        _Panel(
            "lag of a transaction (ms)",
            {"p50": line(lambda each: each["p50_ms"]), "p95": line(lambda each: each["p95_ms"])},
            steps=True,
        ),
        _Panel("per cent of a core", by_name("cpu", memory)),
        _Panel("memory (MiB)", by_name("memory", memory)),
        _Panel("files", by_name("files", stores)),
        _Panel("on disk (MiB)", by_name("mib", stores)),
    ]
    minutes = round(found["seconds"] / 60)
    title = (
        f"{minutes // 60} h {minutes % 60} min at {course['rate']:g} transactions/s,"
        f" {found['ddls']} DDL, {len(found['killed'])} kills"
    )
    return _drawn(title, panels, [at for at, _ in found["killed"]])


def _drawn(title: str, panels: list[_Panel], marks: list[float]) -> str:
    height = _TOP + len(panels) * (_HEIGHT + _GAP) + 10
    end_s = max(at for panel in panels for line in panel.lines.values() for at, _ in line)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
            ' font-family="sans-serif" font-size="12" fill="#24292f">'
        ),
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="24" font-size="16">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, _TOP + number * (_HEIGHT + _GAP), end_s, marks)
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: _Panel, top: int, end_s: float, marks: list[float]) -> list[str]:
    values = sorted(
        value for line in panel.lines.values() for _, value in line if value is not None
    )
    scale = (_Tenfold if panel.steps else _Linear)(values)
    bottom, wide = top + _HEIGHT, _WIDTH - _LEFT - _RIGHT

    def x(at_s: float) -> float:
        return round(_LEFT + wide * at_s / end_s, 1)

    def y(value: float) -> float:
        return round(bottom - _HEIGHT * min(scale.part(value), 1), 1)

    parts = [f'<text x="{_LEFT}" y="{top - 8}" font-weight="bold">{escape(panel.title)}</text>']
    for value in scale.marks:
        at = y(value)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + wide}" y1="{at}" y2="{at}" stroke="#d0d7de"/>'
        )
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4}" text-anchor="end">{_short(value)}</text>')
    parts += [
        f'<text x="{x(minutes * 60)}" y="{bottom + 16}" text-anchor="middle">{minutes} min</text>'
        for minutes in range(0, int(end_s / 60) + 1, _step(end_s))
    ]
    parts += [
        f'<line x1="{x(at)}" x2="{x(at)}" y1="{bottom}" y2="{bottom + 4}" stroke="#b8002e"/>'
        for at in marks
        if at <= end_s
    ]
    for number, (name, line) in enumerate(panel.lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(f"{x(at)},{y(value)}" for at, value in line if value is not None)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
        parts.append(
            f'<text x="{_LEFT + wide + 12}" y="{top + 14 + 18 * number}"'
            f' fill="{colour}">{escape(name)}</text>'
        )
    return parts


class _Linear:
    """A scale from 0 to what all but the highest few values fit in."""

    def __init__(self, values: list[float]) -> None:
        """Prepare an axis of `values`, ascending."""
        self._most = _round_up(
            values[min(len(values) - 1, int(len(values) * 0.995))] if values else 1.0
        )
        self.marks = [0, self._most / 2, self._most]

    def part(self, value: float) -> float:
        """Return the height of a value: 0 to 1, or above where it doesn't fit in."""
        return value / self._most


class _Tenfold:
    """A scale as `_Linear`, of all values, on which each tenfold value is as much higher."""

    def __init__(self, values: list[float]) -> None:
        low, high = (
            (math.log10(max(1.0, end)) for end in (values[0], values[-1])) if values else (0.0, 0.0)
        )
        self._low, self._high = math.floor(low), max(math.ceil(high), math.floor(low) + 1)
        self.marks = [10.0**power for power in range(self._low, self._high + 1)]

    def part(self, value: float) -> float:
        return max(0.0, math.log10(max(1.0, value)) - self._low) / (self._high - self._low)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    return next((power * step for step in (1, 2, 5, 10) if power * step >= value), value)


def _step(end_s: float) -> int:
    """Return minutes between two times below a panel: about eight of them."""
    return next(
        step for step in (1, 2, 5, 10, 15, 30, 60, 120, 240, 1440) if end_s / 60 / step <= 9
    )
