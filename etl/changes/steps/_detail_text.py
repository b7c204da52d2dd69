"""Write a step's detail as JSON, and read it back; the usual forms without a parser."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.steps._details import (
    CommitDetail,
    DeleteDetail,
    DropUniqueness,
    FlushDetail,
    HoldAsBytes,
    InFlightDetail,
    LatestImagesDetail,
    LoadDetail,
    RowsDetail,
    ScopedDdl,
    StepDetail,
    TransactionDetail,
)
from sluice.relay import to_text

_BY_KIND: dict[str, type[StepDetail]] = {
    each.kind: each
    for each in (
        DeleteDetail,
        LoadDetail,
        HoldAsBytes,
        DropUniqueness,
        InFlightDetail,
        FlushDetail,
        TransactionDetail,
        CommitDetail,
        ScopedDdl,
        LatestImagesDetail,
    )
}


_FIRST_TS = '{"first_ts":'
_LAYOUT = ',"layout":'
_MAX_CACHED_CHARACTERS = 8 * 2**20
"""Size of the layouts that are cached."""


class _LayoutCache:
    """A table's layout is mostly the same object, and so the same text, window after window."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[LoadLayout, str]] = {}
        self._layouts: dict[str, LoadLayout] = {}
        self._characters = 0

    def text(self, layout: LoadLayout) -> str:
        """Return a layout's JSON."""
        known = self._texts.get(id(layout))
        if known is None or known[0] is not layout:
            known = layout, to_text(layout.to_json())
            self._make_room(len(known[1]))
            self._texts[id(layout)] = known
        return known[1]

    def layout(self, text: str) -> LoadLayout:
        """Return the inverse of `text`."""
        known = self._layouts.get(text)
        if known is None:
            known = LoadLayout.from_json(json.loads(text))
            self._make_room(len(text))
            self._layouts[text] = known
        return known

    def _make_room(self, characters: int) -> None:
        if self._characters + characters > _MAX_CACHED_CHARACTERS:
            self._texts.clear()
            self._layouts.clear()
            self._characters = 0
        self._characters += characters


_layout_cache = _LayoutCache()


def detail_to_text(detail: StepDetail) -> str:
    """Return the JSON of a detail."""
    if isinstance(detail, RowsDetail) and not (
        detail.safe or detail.absent or detail.source or detail.keeps_deleted
    ):
        head = f"{_FIRST_TS}{detail.first_ts}"
        if detail.worker is not None:
            head += f',"worker":{detail.worker}'
        if isinstance(detail, DeleteDetail) and detail.listed is None:
            return head + "}"
        if isinstance(detail, LoadDetail) and not detail.warnings:
            if detail.replaces:
                head += f',"replaces":{detail.replaces}'
            if detail.keys:
                head += f',"keys":{_keys_text(detail.keys)}'
            return f"{head}{_LAYOUT}{_layout_cache.text(detail.layout)}}}"
    return to_text(detail.to_json())


@functools.lru_cache(maxsize=4096)
def _keys_text(keys: tuple[str, ...]) -> str:
    return to_text(keys)


def detail_from_text(kind: str, text: str) -> StepDetail:
    """Return the inverse of `detail_to_text`. Raises KeyError for a kind that isn't known."""
    if kind == DeleteDetail.kind:
        first_ts = text[len(_FIRST_TS) : -1]
        if text.startswith(_FIRST_TS) and first_ts.isdecimal():
            return DeleteDetail(int(first_ts))
    if kind != LoadDetail.kind:
        return detail_from_json(kind, json.loads(text))
    head, _, layout = text.partition(_LAYOUT)  # in a string its quotes would be escaped
    first_ts, _, more = head[len(_FIRST_TS) :].partition(",")
    if head.startswith(_FIRST_TS) and first_ts.isdecimal():
        return LoadDetail(
            int(first_ts), layout=_layout_cache.layout(layout[:-1]), **_load_members(more)
        )
    return LoadDetail(
        layout=_layout_cache.layout(layout[:-1]), **_load_members.__wrapped__(head[1:])
    )


@functools.lru_cache(maxsize=1024)
def _load_members(text: str) -> dict[str, Any]:
    """Return the members of a load's detail, without the layout.

    Many are alike; callers must not change what they share.
    """
    document: dict[str, Any] = json.loads(f"{{{text}}}")
    return document | {"keys": tuple(document.get("keys", ()))}


def detail_from_json(kind: str, document: Mapping[str, Any]) -> StepDetail:
    """Return the detail of a step of this kind. Raises KeyError for a kind that isn't known."""
    return _BY_KIND[kind].from_json(document)
