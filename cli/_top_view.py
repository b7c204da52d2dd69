"""Draw the screen of `sluice top`: text as wide and as high as the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from sluice.etl.display_units import counted, format_size
from sluice.tidb.table_name import first_of

if TYPE_CHECKING:
    from sluice.etl.operate.overview import Overview
    from sluice.relay.measures import LagPoint

__all__ = ["PipelineView", "screen"]

_COLOURS = {
    "works": "green",
    "idle": "dim",
    "waits": "yellow",
    "paused": "yellow",
    "stopped": "bold red",
    "unknown": "red",
}
_BARS = "▁▂▃▄▅▆▇█"
_MAX_PUMPS, _MAX_JOBS = 5, 3
_PART_WIDTH, _STATE_WIDTH, _LAG_WIDTH, _RATE_WIDTH = 12, 9, 12, 18


@dataclass(frozen=True, slots=True)
class PipelineView:
    """The values shown of a pipeline.

    `error`: why it can't be seen now, "" if it can; `overview` is older then.
    """

    name: str
    overview: Overview | None
    points: Sequence[LagPoint] = ()
    error: str = ""


def screen(shown: PipelineView, width: int, height: int, keys: str = "") -> Text:
    """Return all lines, cut to the width; at most `height` of them, the last one the keys."""
    lines = [_cut(line, width) for line in _lines(shown, width)]
    room = height - (1 if keys else 0)
    if len(lines) > room:
        lines = _first_of(lines, room - 1, "lines")
    if keys:
        lines += [Text()] * (room - len(lines)) + [Text(keys[:width], style="reverse")]
    return Text("\n").join(lines)


def _first_of(rows: Iterable[Text], limit: int, kind: str, indent: int = 0) -> list[Text]:
    """Return the first `limit` rows, and a row with the number of the others."""
    return [
        row if isinstance(row, Text) else Text(f"{'':{indent}}{row}", style="dim")
        for row in first_of(rows, limit, kind)
    ]


def _clean(text: str) -> str:
    """Remove control characters: names and error texts come from others."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def _lines(shown: PipelineView, width: int) -> Iterator[Text]:
    seen = shown.overview
    if seen is None:
        yield Text(
            f"{shown.name or 'pipeline'}: {'looking …' if not shown.error else ''}", style="bold"
        )
        yield from (Text(part, style="red") for part in textwrap.wrap(_clean(shown.error), width))
        return
    yield _head(shown.name, seen)
    yield Text(_clean(f"not seen since then: {shown.error}") if shown.error else "", style="red")
    yield Text(
        f"{'':{_PART_WIDTH}}{'':{_STATE_WIDTH}}{'behind':>{_LAG_WIDTH}}{'pace':>{_RATE_WIDTH}}  ",
        style="dim",
    )
    yield from _pumps(seen)
    yield from _way(seen)
    yield Text()
    yield _hour(shown.points, width)
    yield from _waiting(seen)
    yield Text()
    yield from _held_back(seen, width)


def _head(name: str, seen: Overview) -> Text:
    at = datetime.fromtimestamp(seen.at_ms / 1000, UTC)
    head = Text(_clean(name or seen.pipeline), style="bold")
    head.append(f"   {at:%Y-%m-%d %H:%M:%S} UTC   ", style="dim")
    return head.append(f"lag {_lag(seen.lag_ms)}", style="bold")


def _row(part: str, state: str, lag: str = "", pace: str = "", more: str = "") -> Text:
    row = Text(f"{part:<{_PART_WIDTH}}")
    row.append(f"{state:<{_STATE_WIDTH}}", style=_COLOURS.get(state, ""))
    return row.append(f"{lag:>{_LAG_WIDTH}}{pace:>{_RATE_WIDTH}}  ").append(
        _clean(more), style="dim"
    )


def _pumps(seen: Overview) -> Iterator[Text]:
    pumps = sorted(
        seen.pumps, key=lambda pump: (pump.state == "idle", pump.state == "works", -pump.lag_ms)
    )
    rows = (
        _row(
            "pump",
            pump.state,
            _lag(pump.lag_ms) if pump.state != "idle" else "",
            more=f"{pump.node_id} {pump.registry_state}",
        )
        for pump in pumps
    )
    yield from _first_of(rows, _MAX_PUMPS, "pumps", len(_row("", "")))
    if "upstream" in seen.errors:
        yield _row("pumps", "unknown", more=f"{_as_of(seen, 'upstream')}{seen.errors['upstream']}")


def _way(seen: Overview) -> Iterator[Text]:
    landing, relay, downstream, archive = seen.landing, seen.relay, seen.downstream, seen.archive
    yield _row(
        "landing", landing.state, _lag(landing.lag_ms), f"{landing.changes_per_s:,.0f} rows/s"
    )
    held = f"{_lag(relay.waiting_ms)} of it not applied" if relay.waiting_ms else ""
    yield _row(
        "relay log", relay.state, "", "" if relay.bytes is None else format_size(relay.bytes), held
    )
    pace = f"{downstream.changes_per_s:,.0f} rows/s"
    more = f"{_as_of(seen, 'downstream')}{downstream.name}"
    yield _row("downstream", downstream.state, _lag(downstream.lag_ms), pace, more)
    snapshots = counted(archive.snapshots, "snapshot") if archive.snapshots else ""
    lag = _lag(archive.lag_ms) if archive.hi else ""
    yield _row(
        "archive",
        archive.state,
        lag,
        format_size(archive.bytes) if archive.bytes else "",
        snapshots,
    )
    verified = seen.verified
    if verified.tables:
        state = "stopped" if verified.differences else "works"
        if verified.uncompared and not verified.differences:
            state = "waits"
        yield _row("verified", state, _lag(verified.age_ms), "", verified.text)
    else:
        yield _row("verified", "idle", "never")


def _as_of(seen: Overview, party: str) -> str:
    """Return how old what is shown of a party is, if it doesn't answer."""
    if party not in seen.errors or party not in seen.as_of_ms:
        return ""
    return f"{_lag(seen.at_ms - seen.as_of_ms[party])} ago: "


def _hour(points: Sequence[LagPoint], width: int) -> Text:
    """Draw the lag of the last hour as bars, from left to right."""
    lags = [point.lag_ms for point in points if point.lag_ms is not None]
    if not lags:
        return Text("lag of the last hour: nothing is known yet", style="dim")
    most = max(lags)
    columns = max(10, width - 40)
    per = max(1, -(-len(lags) // columns))
    peaks = [max(lags[at : at + per]) for at in range(0, len(lags), per)]
    bars = "".join(_BARS[min(7, int(8 * peak / most)) if most else 0] for peak in peaks)
    return (
        Text("lag, last hour ", style="dim")
        .append(bars, style="cyan")
        .append(f" at most {_lag(most)}", style="dim")
    )


def _job(job: Mapping[str, Any]) -> Text:
    progress = job["progress"]
    left = "" if progress["left_s"] is None else f", about {progress['left_s']:,.0f} s left"
    percent = "" if progress["percent"] is None else f"{progress['percent']} %, "
    pace = f"{percent}{progress['rows_per_s']:,.0f} rows/s{left}"
    text = f"{_clean(job['id'])}: {pace}"
    return Text(f"{'job':<{_PART_WIDTH}}{job['state']:<{_STATE_WIDTH}}   {text}")


def _waiting(seen: Overview) -> Iterator[Text]:
    jobs = (_job(job) for job in seen.jobs)
    yield from _first_of(jobs, _MAX_JOBS, "jobs: `sluice jobs list`", _PART_WIDTH)
    if seen.overrides:
        yield Text(
            f"{'decided':<{_PART_WIDTH}}{len(seen.overrides)} to come: `sluice overrides list`"
        )


def _held_back(seen: Overview, width: int) -> Iterator[Text]:
    if not seen.held_back:
        yield Text("nothing holds it back", style="green")
    for reason in seen.held_back:
        parts = textwrap.wrap(_clean(reason), width - 2, max_lines=3, placeholder=" …") or [""]
        yield Text(f"• {parts[0]}", style="yellow")
        yield from (Text(f"  {part}", style="yellow") for part in parts[1:])


def _lag(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "unknown"
    seconds = milliseconds / 1000
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 360_000 else f"{seconds / 86_400:.0f} d"
