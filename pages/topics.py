"""Serve the topics of a Kafka downstream, for the page Overview."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from sluice.etl.operate.topics import TopicTraffic, topic_traffic
from sluice.etl.settings import Settings
from sluice.pages.caller import PipelineParam, SettingsParam
from sluice.pages.response_cache import answer
from sluice.relay.measures import CounterStore

__all__ = ["PAGE_SIZE", "router", "topics_document"]

router = APIRouter()

PAGE_SIZE = 20
_CACHE_TTL_S = 4.0


@router.get("/topics")
async def topics(
    request: Request,
    pipeline: PipelineParam,
    settings: SettingsParam,
    find: Annotated[str, Query(max_length=249)] = "",
    page: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    """Return a page of the topics."""
    return await answer(
        request,
        ("topics", pipeline, find, page),
        lambda: topics_document(settings, find, page),
        _CACHE_TTL_S,
    )


def topics_document(settings: Settings, find: str, page: int) -> dict[str, Any]:
    """Return a page of the topics whose name holds `find`, those with errors and the largest first.

    `count` is how many there are of these, `all` of all topics; the sums are over all topics.
    """
    store = CounterStore(settings.open_relay(), settings.downstream_name)
    every = topic_traffic(store.totals().apply.counts)
    found = sorted((each for each in every if find.lower() in each.topic.lower()), key=_rank)
    return {
        "topics": [asdict(each) for each in found[page * PAGE_SIZE :][:PAGE_SIZE]],
        "count": len(found),
        "all": len(every),
        "messages": sum(each.messages for each in every),
        "bytes": sum(each.bytes for each in every),
        "errors": sum(each.errors for each in every),
    }


def _rank(traffic: TopicTraffic) -> tuple[int, int, str]:
    return -traffic.errors, -traffic.bytes, traffic.topic
