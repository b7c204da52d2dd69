"""Render the Data Docs' pages as HTML: one for each suite of a run, and the index.

They are plain files: no script, nothing from elsewhere, so that they show behind any login and
without a network. Whatever comes from data or settings goes through `_escape`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from typing import Any
from urllib.parse import quote

from sluice.relay.quality import PASSED, QualityRun
from sluice.tidb import tso

__all__ = ["STYLE", "ExpectationLine", "index_page", "suite_page"]

STYLE = """\
:root { color-scheme: light dark; --line: #d5d9df; --soft: #f4f6f8; --text: #1b2430; --dim: #5d6878;
  --good: #1a7f4b; --warn: #9a6400; --bad: #c22f2f; }
@media (prefers-color-scheme: dark) { :root { --line: #38404c; --soft: #1d232c; --text: #e4e8ee;
  --dim: #97a3b4;
  --good: #4cc38a; --warn: #e2a93b; --bad: #ff7b72; } body { background: #12161c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); margin: 0 auto; padding: 1.2rem;
  max-width: 70rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .3rem 0; } a { color: inherit; } .dim, .dim a { color: var(--dim); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--dim); white-space: nowrap; }
td.number { text-align: right; white-space: nowrap; }
.badge { display: inline-block; padding: 0 .55rem; border-radius: 1rem; border: 1px solid;
  font-size: .85rem; font-weight: 600; white-space: nowrap; }
.passed { color: var(--good); } .warned { color: var(--warn); }
.failed, .paused, .error { color: var(--bad); }
.card { border: 1px solid var(--line); border-left-width: 4px; border-radius: 6px;
  padding: .7rem 1rem; margin: .7rem 0; }
.card p:first-child { display: flex; gap: .6rem; align-items: baseline; margin-top: 0; }
.card.warned { border-left-color: var(--warn); }
.card.failed, .card.paused { border-left-color: var(--bad); }
.card > * { color: var(--text); } .card .dim { color: var(--dim); }
.card .badge { color: var(--bad); }
.card.warned .badge { color: var(--warn); }
.examples { margin-top: .5rem; font-size: .9rem; }
.examples td, .bars td { font-variant-numeric: tabular-nums; }
.examples td { background: var(--soft); font-family: ui-monospace, monospace;
  overflow-wrap: anywhere; }
.trend { letter-spacing: .08em; white-space: nowrap; }
"""
_STATE_OF = {"warn": "warned", "fail": "failed", "pause": "paused"}
_SEVERITY_WORDS = {"warn": "warns", "fail": "fails the run", "pause": "pauses applying"}
_STATE_MARKS = {PASSED: "●", "warned": "▲", "error": "✕"}
_TREND_RUNS = 20


@dataclass(frozen=True, slots=True)
class ExpectationLine:
    """One expectation of a page, in plain text. `examples`: rows, each with its columns' names."""

    met: bool
    statement: str
    severity: str
    why: str
    observed: str
    examples: Sequence[Mapping[str, Any]] = ()


def suite_page(run: QualityRun, lines: Sequence[ExpectationLine]) -> str:
    """Render what a suite found in one run."""
    failed = [line for line in lines if not line.met]
    parts = [
        f"<p class=dim><a href='{_up(run)}index.html'>All runs</a></p>",
        f"<h1>{_escape(run.suite)} {_badge(run.state)}</h1>",
        f"<p class=dim>{_escape(_when(run))}</p>",
        (
            f"<p>{len(lines) - len(failed)} of {len(lines)} expectations are met, looked at in"
            f" {run.seconds:.1f} s.</p>"
        ),
    ]
    if run.message:
        parts.append(f"<p class=error>{_escape(run.message)}</p>")
    if failed:
        parts += ["<h2>Not met</h2>", *map(_card, failed)]
    met = [line for line in lines if line.met]
    if met:
        rows = [
            [_escape(line.statement), _escape(line.observed), _escape(line.why)] for line in met
        ]
        parts += ["<h2>Met</h2>", _table(("Expectation", "Found", "Why"), rows)]
    return _page(run.suite, "".join(parts), _up(run))


def index_page(runs: Sequence[QualityRun]) -> str:
    """Return the page with all kept runs, newest first."""
    parts = ["<h1>Data quality</h1>"]
    if not runs:
        parts.append(
            "<p>There was no run yet: <code>sluice quality run</code>, or the DAG"
            " <code>quality</code>.</p>"
        )
    else:
        parts += ["<h2>Suites</h2>", _suites(runs), "<h2>Runs</h2>", _runs(runs)]
    return _page("Data quality", "".join(parts), "")


def _suites(runs: Sequence[QualityRun]) -> str:
    by_suite: dict[str, list[QualityRun]] = {}
    for run in runs:
        by_suite.setdefault(run.suite, []).append(run)
    rows = []
    for suite in sorted(by_suite):
        own = by_suite[suite]
        trend = "".join(
            f"<span class={run.state} title='{_escape(_when(run))}'>{_mark(run)}</span>"
            for run in own[:_TREND_RUNS]
        )
        rows.append(
            [
                _link(own[0]),
                _badge(own[0].state),
                f"<span class=trend>{trend}</span>",
                _escape(_failures(own[0])),
            ]
        )
    return _table(
        ("Suite", "Newest", f"Before (newest first, {_TREND_RUNS} at most)", "Not met"), rows
    )


def _runs(runs: Sequence[QualityRun]) -> str:
    rows = []
    for _, found in groupby(runs, key=lambda run: run.run):
        own = list(found)
        for number, run in enumerate(own):
            when = _escape(_when(run)) if number == 0 else ""
            rows.append(
                [
                    when,
                    _link(run),
                    _badge(run.state),
                    f"{run.expectations - run.failed} of {run.expectations}",
                    f"{run.seconds:.1f} s",
                ]
            )
    return _table(("When", "Suite", "State", "Met", "Took"), rows)


def _card(line: ExpectationLine) -> str:
    state = _STATE_OF[line.severity]
    why = f"<p class=dim>{_escape(line.why)}</p>" if line.why else ""
    return (
        f"<div class='card {state}'><p><span"
        f" class=badge>{_escape(_SEVERITY_WORDS[line.severity])}</span>"
        f"<strong>{_escape(line.statement)}</strong></p><p>{_escape(line.observed)}</p>{why}{_examples(line.examples)}</div>"
    )


def _examples(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_escape(row.get(name, "")) for name in names] for row in rows]
    return f"<div class=examples>{_table([_escape(name) for name in names], cells)}</div>"


def _table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its cells are HTML."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f"<div class=wide><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _page(title: str, body: str, up: str) -> str:
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport"
        f" content='width=device-width, initial-scale=1'><title>{_escape(title)}</title><link"
        f" rel=stylesheet href='{up}style.css'></head><body>{body}</body></html>\n"
    )


def _when(run: QualityRun) -> str:
    moment = datetime.fromtimestamp(run.at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    as_of = f", as of {tso.text(run.ts)}" if run.ts else ""
    return (
        f"{moment}, on {'the replication' if run.on == 'replication' else f'the {run.on}'}{as_of}"
    )


def _failures(run: QualityRun) -> str:
    if run.message:
        return run.message
    return "; ".join(f"{f.about or f.expectation}: {f.observed}" for f in run.failures[:3])


def _mark(run: QualityRun) -> str:
    return _STATE_MARKS.get(run.state, "■")


def _badge(state: str) -> str:
    return f"<span class='badge {_escape(state)}'>{_escape(state)}</span>"


def _link(run: QualityRun) -> str:
    return (
        f"<a href='{_escape(quote(run.page))}'>{_escape(run.suite)}</a>"
        if run.page
        else _escape(run.suite)
    )


def _up(run: QualityRun) -> str:
    return "../" * run.page.count("/")


def _escape(value: object) -> str:
    """Escape text for HTML, also inside of an attribute's quotes."""
    return escape(str(value), quote=True)
