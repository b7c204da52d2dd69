"""What `sluice status` prints of topics: errors first, then the largest, and not all of many."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sluice.cli._status_lines import pipeline_lines
from sluice.etl.operate.assurance import verified_part

_NEVER = "verified    never compared; `sluice verify` compares"


def topic(name: str, messages: int, size: int, errors: int = 0) -> dict[str, Any]:
    return {"topic": name, "messages": messages, "bytes": size, "errors": errors}


def lines_of(*topics: dict[str, Any]) -> list[str]:
    nothing: dict[str, Any] = dict.fromkeys(
        ("landed_from", "checkpoint", "consistent", "written_by", "blocked", "stopped")
    )
    nothing |= dict.fromkeys(("ddl_under_way", "landed_not_applied_ms", "lag_ms", "apply_until_ts"))
    nothing |= dict.fromkeys(("land_paused", "apply_paused", "rules_changed"), False)
    nothing |= {
        name: [] for name in ("failures", "overrides", "jobs", "unequal", "pumps", "outdated")
    }
    nothing["verified"] = asdict(verified_part(()))
    nothing["restorable"] = None
    found = pipeline_lines(
        nothing
        | {"relay": {"url": "file:///r", "lo": None, "hi": None}, "errors": {}}
        | {"topics": list(topics)}
    )
    begin, end = found.index("checkpoint  none yet") + 1, found.index(_NEVER)
    return found[begin:end]


def test_topics_with_errors_come_first_and_then_the_largest() -> None:
    assert lines_of(topic("a", 1, 20), topic("b", 1234, 5000), topic("c", 2, 10, 3)) == [
        "topic       c: 2 messages, 10 B, 3 errors of sending",
        "topic       b: 1,234 messages, 5.0 kB",
        "topic       a: 1 message, 20 B",
    ]


def test_many_topics_are_counted_and_none_of_a_database() -> None:
    many = [topic(f"t{n}", n, n) for n in range(25)]
    assert lines_of(*many)[-1] == "            and 5 more topics"
    assert len(lines_of(*many)) == 21
    assert lines_of() == []
