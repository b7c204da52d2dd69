"""List the pages as they stand in the navigation."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PAGES", "Page"]


@dataclass(frozen=True, slots=True)
class Page:
    """`name` is that of its module here, of the one under `static/`, and of its address."""

    name: str
    title: str


PAGES = (
    Page("overview", "Overview"),
    Page("tables", "Tables"),
    Page("transactions", "Transactions"),
    Page("jobs", "Jobs"),
    Page("quality", "Quality"),
    Page("time", "Time"),
)
