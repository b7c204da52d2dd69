"""Render a page's HTML: the same for all; each page's script draws its content."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

__all__ = ["PAGES", "Page", "logged_out_html", "page_html"]

_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Sluice</title>
<link rel="icon" href="static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="static/style.css">
<script src="static/theme.js"></script>
<script type="module" src="static/shell.js"></script>
</head>
<body data-page="{name}">
<header class="top">
<nav aria-label="Pages of Sluice">{links}</nav>
<div id="tools" class="tools"></div>
</header>
<main id="page" aria-busy="true"><p class="quiet waiting">Looking …</p></main>
<div id="notes" role="status" aria-live="polite"></div>
<noscript>
<p class="quiet">These pages are drawn by JavaScript, which is switched off.</p>
</noscript>
</body>
</html>
"""
_LOGGED_OUT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sluice</title>
</head>
<body>
<h1>{title}</h1>
<p>{message}</p>
<p><a href="{login}">Airflow's login</a></p>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class Page:
    """A page; `name` is that of its module here, of its script, and of its address."""

    name: str
    title: str


PAGES = (
    Page("overview", "Overview"),
    Page("tables", "Tables"),
    Page("transactions", "Transactions"),
    Page("jobs", "Jobs"),
    Page("quality", "Quality"),
    Page("time", "Time"),
    Page("doctor", "Doctor"),
)


def page_html(page: Page) -> str:
    """Render the page's HTML."""
    links = "".join(
        f'<a href="{escape(each.name)}"{" aria-current=page" if each == page else ""}>'
        f"{escape(each.title)}</a>"
        for each in PAGES
    )
    return _DOCUMENT.format(title=escape(page.title), name=escape(page.name), links=links)


def logged_out_html(title: str, message: str, login: str) -> str:
    """Render the page for a user who may not see anything."""
    return _LOGGED_OUT.format(title=escape(title), message=escape(message), login=escape(login))
