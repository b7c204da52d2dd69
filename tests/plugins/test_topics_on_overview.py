"""The topics of a Kafka downstream on the page Overview, in Chromium."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from sluice.etl.operate.overview import overview
from sluice.etl.settings import Settings, load_settings
from sluice.pages.response_cache import _for_browsers
from sluice.pages.topics import PAGE_SIZE, topics_document
from sluice.relay.measures import CounterRecorder, CounterStore, source_of
from tests.plugins.drawing import Open, chromium, fits, grave_faults
from tests.relay.relaykit import window

TRAP = "<img src=x onerror=\"window.caught='topic'\">"
TRAFFIC = {"cdc.shop.orders": (1_234_567, 3_400_000_000, 0), "cdc.shop.refused": (7, 900, 2)}
AT = 1_790_000_000_000 << 18
"""The checkpoint (TSO)."""
LAG = {"step_ms": 10_000, "points": [], "states": [], "jobs": []}


@pytest.fixture(scope="module")
def look() -> Iterator[Open]:
    with chromium() as opened:
        yield opened


def counted(
    folder: Path, traffic: dict[str, tuple[int, int, int]], kind: str = "kafka"
) -> Settings:
    """A pipeline that has sent this, by topic: messages, bytes, errors."""
    target = {
        "kafka": f'type = "kafka"\n[kafka]\nbrokers = "127.0.0.1:1"\nsavepoint = "{folder}/s"\n',
        "mysql": 'host = "127.0.0.1"\nport = 1\n',
    }
    config = folder / "sluice.toml"
    config.write_text(
        '[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl ='
        f' "file://{folder}/relay"\n[downstream]\n{target[kind]}'
    )
    (folder / "s").write_text(f"commitTS = {AT}\n")
    settings = load_settings(config)
    settings.open_relay().commit(window(AT - 1, AT))
    name = settings.downstream_name
    recorder = CounterRecorder(CounterStore(settings.open_relay()), source_of(name), every_s=3600)
    for topic, (messages, size, errors) in traffic.items():
        sent = {f"topic.messages.{topic}": messages, f"topic.bytes.{topic}": size}
        recorder.count({"changes": messages} | sent if messages else {})
        recorder.count({f"topic.errors.{topic}": errors} if errors else {})
    recorder.close()
    return settings


def answers(settings: Settings, find: str = "", page: int = 0) -> dict[str, Any]:
    """What the page gets."""
    return {
        "overview": _for_browsers(overview(settings, 60.0).to_json()),
        "topics": _for_browsers(topics_document(settings, find, page)),
        "lag": LAG,
    }


@pytest.fixture(scope="module")
def two_topics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return answers(counted(tmp_path_factory.mktemp("pipeline"), TRAFFIC))


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark"), (1280, "light")])
def test_each_topic_has_its_messages_bytes_errors_and_lag_errors_first(
    look: Open, two_topics: dict[str, Any], width: int, scheme: str
) -> None:
    tab = look(
        "overview",
        two_topics,
        color_scheme=scheme,
        viewport={"width": width, "height": 900},
    )
    rows = tab.locator("#topics tbody tr")
    expect(rows).to_have_count(2)
    assert rows.nth(0).locator("td").all_text_contents()[:4] == [
        "cdc.shop.refused", "7", "900 B", "2",
    ]  # fmt: skip
    cells = rows.nth(1).locator("td").all_text_contents()
    assert cells[:4] == ["cdc.shop.orders", "1,234,567", "3.4 GB", "0"]
    assert cells[4].endswith(" d")  # as far behind as the checkpoint
    expect(tab.locator("#topics .strip").first).to_contain_text("2 errors of sending")
    assert fits(tab)
    if pictures := os.environ.get("SLUICE_TEST_PICTURES"):
        tab.screenshot(path=Path(pictures) / f"topics-{width}-{scheme}.png", full_page=True)
    assert grave_faults(tab) == []


@pytest.mark.slow
def test_many_topics_come_in_pages_a_search_narrows_them_and_names_are_text(
    look: Open, tmp_path: Path
) -> None:
    many = {f"t{n:05}": (1, n, 0) for n in range(10_000)} | {TRAP: (0, 0, 1)}
    settings = counted(tmp_path, many)
    found = answers(settings, page=1)
    assert found["topics"]["topics"][0]["topic"] == f"t{10_000 - PAGE_SIZE:05}"
    assert len(json.dumps(found["overview"])) < 4000  # the first page is as large as without them
    assert len(json.dumps(found["topics"])) < 4000
    tab = look("overview?topics=1", found)
    expect(tab.locator("#topics tbody tr")).to_have_count(PAGE_SIZE)
    expect(tab.locator("#pager")).to_contain_text("Page 2 of 501")
    tab.get_by_role("button", name="Previous").click()
    tab.wait_for_url("**/overview")
    with tab.expect_request("**/api/topics?find=00042"):
        tab.locator("#topic").fill("00042")
    assert tab.url.endswith("overview?topic=00042")
    one = topics_document(settings, "T00042", 0)
    assert (len(one["topics"]), one["count"], one["all"]) == (1, 1, 10_001)
    tab = look("overview", found | {"topics": topics_document(settings, "", 0)})
    expect(tab.locator("#topics tbody tr").first).to_contain_text(TRAP)
    assert tab.evaluate("window.caught") is None


def test_a_database_has_none(look: Open, tmp_path: Path) -> None:
    settings = counted(tmp_path, {}, "mysql")
    tab = look("overview", {"overview": answers(settings)["overview"], "lag": LAG})
    expect(tab.locator("#facts")).to_be_visible()
    expect(tab.locator("#topics")).to_have_count(0)
