"""The documentation's site: built without network, whole, and nothing in it is loaded from
elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

from sluice.cli import group

ROOT = Path(__file__).resolve().parents[1]
BUILD = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise OSError(f"the documentation asks the network: {event} {arguments[1:]}")

sys.addaudithook(refuse)
from mkdocs.__main__ import cli
cli()
"""


class Loads(HTMLParser):
    """What a page loads, and the links in it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.images: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if tag in ("script", "img", "iframe", "source", "object"):
            self.loaded.append(found.get("src") or found.get("data") or "")
        if tag == "link":
            self.loaded.append(found.get("href") or "")
        if tag == "img":
            self.images.append(found.get("src") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder


def pages(site: Path) -> list[Path]:
    """All but the one for addresses that aren't there: it may be shown anywhere, so its links begin
    with /.
    """
    return [page for page in site.rglob("*.html") if page.stem != "404"]


DOCUMENTS = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.slow
def test_every_document_is_a_page(site):
    docs = ROOT / "docs"
    written = {str(path.relative_to(docs).with_suffix("")) for path in docs.rglob("*.md")}
    shown = {str(page.relative_to(site).with_suffix("")) for page in pages(site)}
    assert shown == written | {"contributing", "changelog", "security"}


@pytest.mark.slow
def test_no_page_and_no_style_loads_anything_from_elsewhere(site):
    for page in site.rglob("*.html"):
        assert not [where for where in Loads(page).loaded if re.match(r"(https?:)?//", where)], (
            page.name
        )
    for style in site.rglob("*.css"):
        assert not re.search(
            r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text(encoding="utf-8")
        ), style.name


@pytest.mark.slow
def test_every_picture_is_there(site):
    shown = {page.parent / image for page in pages(site) for image in Loads(page).images}
    assert {path.name for path in (ROOT / "docs").glob("*.svg")} <= {image.name for image in shown}
    assert not [image for image in shown if not image.is_file()]


@pytest.mark.slow
def test_no_page_points_to_a_file_of_the_repository_that_is_no_page(site):
    for page in pages(site):
        links = re.findall(r'<a[^>]* href="([^"#]+)', page.read_text(encoding="utf-8"))
        assert not [
            link
            for link in links
            if not re.match(r"\w+:", link) and not (page.parent / link).is_file()
        ], page.name


def test_every_file_of_ours_that_a_document_names_is_there():
    rooms = (
        "bench|cli|dags|deploy|devstack|docs|etl|expectations|monitoring|plugins|providers"
        "|pump_service|relay|spark|tests|tidb"
    )
    named = re.compile(rf"`((?!deploy/secrets/)(?:{rooms})/[\w./-]+)`")  # make-secrets makes those
    found = {
        (text.name, path)
        for text in DOCUMENTS
        for path in named.findall(text.read_text(encoding="utf-8"))
    }
    assert len(found) > 10
    assert not {(text, path) for text, path in found if not (ROOT / path).exists()}


@pytest.mark.parametrize("text", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_has_fewer_than_300_lines_and_its_prose_is_wrapped(text):
    """Prose wraps at 100 columns; 20 more are for names and for code. Tables may be wider."""
    lines = text.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 300
    for number, line in enumerate(lines, 1):
        if not line.startswith("|"):
            assert len(line) <= 120, f"line {number} has {len(line)} characters"


def commands(text: Path) -> list[str]:
    """What begins with `sluice` in a text's blocks of code and between its quotes, without what is
    left open.
    """
    whole = text.read_text(encoding="utf-8")
    blocks = "\n".join(line.strip() for line in whole.splitlines() if line.startswith("    "))
    lines = re.sub(r" *\\\n", " ", blocks).splitlines()
    typed = [
        match[1]
        for line in lines
        if (match := re.match(r"(?:\$ )?(?:\.venv/bin/)?(sluice .*)", line))
    ]
    quoted = re.findall(r"`(?:\.venv/bin/)?(sluice [^`]+)`", re.sub(r"\n", " ", whole))
    return sorted(
        {re.sub(r" +(#|·).*", "", each).strip() for each in typed + quoted if "…" not in each}
    )


@pytest.mark.parametrize("text", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_and_option_that_a_document_shows_is_there(text):
    for line in commands(text):
        command, rest = group, shlex.split(line)[1:]
        try:
            while isinstance(command, click.Group):
                context = click.Context(command)
                _, rest, _ = command.make_parser(context).parse_args(rest)
                if not rest or (found := command.get_command(context, rest[0])) is None:
                    break
                command, rest = found, rest[1:]
            else:
                context = click.Context(command, **command.context_settings)
                _, rest, _ = command.make_parser(context).parse_args(rest)
                assert not rest or rest[0] == ">" or "[" in line, f"{line}: {rest} is too much"
        except click.UsageError as error:
            pytest.fail(f"{line}: {error.message}")
        assert command is not group or not rest, f"{line}: no such command"


def test_what_documents_send_to_a_dag_are_fields_of_its_form():
    found = set()
    for text in DOCUMENTS:
        blocks = re.sub(r" *\\\n *", " ", text.read_text(encoding="utf-8"))
        for dag, body in re.findall(r"/dags/sluice_(\w+)/dagRuns .*-d '(\{.*\})'", blocks):
            form = set(
                re.findall(
                    r'^ +"(\w+)": Param\(', (ROOT / "dags" / f"{dag}.py").read_text(), re.MULTILINE
                )
            )
            assert json.loads(body)["conf"].keys() <= form, (text.name, body)
            found.add(dag)
    assert {"bootstrap", "backfill"} <= found
