"""Call `[airflow] notify`: once when a cause begins that people should know, once when it is over.

The pipeline's side decides what is new (`sluice.etl.operate.notices`). Where it can't be asked, as
with a relay log that doesn't answer, a task's failure is sent as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from urllib.parse import urlencode

from sluice.airflow.versions import conf
from sluice.errors import SluiceError
from sluice.etl.settings.pipelines import NamedPipeline

__all__ = ["CauseFound", "Message", "Notifier", "TaskWaits", "notified_of_waits", "page_address"]

log = logging.getLogger("sluice")

LONG_WAITS = "sluice.waiting"
"""As `sluice.etl.retry` has it; its records come here from workers and agents, too."""
_MAX_SUBJECT_CHARS, _MAX_TABLES = 150, 20
_REPEAT_AFTER_S = 3600.0
"""What can't be looked up is sent again after it: each run of `replicate` meets it anew."""
_DISK_FULL = "No space left on device"
Call = Callable[..., Any]
"""`sluice.airflow.agent_client.call`."""


class TaskWaits(SluiceError):
    """A task has waited for a minute for something that may pass, and still does."""

    transient = True
    hint = "look at what it waits for; the task continues by itself"


class CauseFound(SluiceError):
    """Something that people should know, which no task of this run has failed with."""

    hint = "see the page Overview"


@dataclass(frozen=True, slots=True)
class Message:
    """A message to people, which templates of a notifier have as ``sluice``.

    `kind`: what it is about, such as ``refused``; `key`: the cause, the same when it is over; `url`
    is the page, `command` what to type.
    """

    pipeline: str
    kind: str
    key: str
    subject: str
    text: str
    command: str
    url: str
    is_over: bool = False


class Notifier:
    """Call `[airflow] notify` of a pipeline, imported when it is called.

    `dag`: the kind of the DAG whose tasks have it for their `on_failure_callback`. `call`: makes
    calls to the pipeline.
    """

    def __init__(self, pipeline: NamedPipeline, dag: str, call: Call) -> None:
        self._pipeline = pipeline
        self._dag = dag
        self._call = call

    def __call__(self, context: Mapping[str, Any]) -> None:
        """Send what is new with a task that has failed, or that waits. Raises the notifier's error.

        `context`: as Airflow's callbacks get it.
        """
        error = context.get("exception")
        report: dict[str, Any] = {
            "dag": self._dag,
            "task": getattr(context.get("ti"), "task_id", ""),
            "text": str(error or "its process has died, or was killed"),
            "hint": getattr(error, "hint", ""),
            "waits": isinstance(error, TaskWaits),
        }
        try:
            due = self._call(self._pipeline, "due_notices", report=report)
        except Exception as unknown:
            log.warning("cannot look up what people know already: %s", unknown)
            if self._is_new_here(report["text"]):
                self._send(context, self._plain(report))
            return
        self._send_all(context, due)

    def look(self, context: Mapping[str, Any]) -> list[str]:
        """Send what is new since the last look; return the keys. Raises the notifier's error."""
        due = self._call(self._pipeline, "due_notices")
        self._send_all(dict(context), due)
        return [notice["key"] for notice in due]

    def digest(self, context: Mapping[str, Any]) -> str:
        """Send the digest of the last day, and return its text."""
        found = self._call(self._pipeline, "digest")
        url = page_address(self._pipeline.name, "overview")
        message = Message(
            self._pipeline.name, "digest", "digest", found["subject"],
            f"{found['text']}\n\nPage: {url}", found["command"], url,
        )  # fmt: skip
        self._send(context, message)
        return message.text

    def _send_all(self, context: Mapping[str, Any], due: list[dict[str, Any]]) -> None:
        sent: list[str] = []
        try:
            for message in _messages(self._pipeline.name, due):
                self._send(context, message)
                sent += message.key.split("\n")
        finally:
            if sent:
                self._call(self._pipeline, "mark_sent", keys=sent)

    def _send(self, context: Mapping[str, Any], message: Message) -> None:
        error = context.get("exception") or CauseFound(message.text, hint=message.command)
        target = resolve_name(self._pipeline.airflow.notify)
        found = target() if isinstance(target, type) else target
        found({**context, "exception": error, "sluice": message})

    def _is_new_here(self, text: str) -> bool:
        """Return whether no task on this machine was given this text in `_REPEAT_AFTER_S`."""
        cause = _DISK_FULL if _DISK_FULL in text else re.sub(r"\d+", "", text)
        name = hashlib.sha256(f"{self._pipeline.path}\n{cause}".encode()).hexdigest()[:16]
        mark = Path(tempfile.gettempdir(), f"sluice-notified-{os.getuid()}-{name}")
        with contextlib.suppress(OSError):
            if time.time() - mark.stat().st_mtime < _REPEAT_AFTER_S:
                return False
        with contextlib.suppress(OSError):
            mark.touch()
        return True

    def _plain(self, report: Mapping[str, Any]) -> Message:
        text, hint = report["text"], report["hint"]
        is_full = _DISK_FULL in text
        kind, page = ("disk", "time") if is_full else ("task", "doctor")
        notice = {
            "key": kind, "kind": kind, "text": text if hint in text else f"{text}\nHint: {hint}",
            "command": "sluice archive status" if is_full else "sluice doctor", "page": page,
            "since_ms": 0, "over_ms": 0,
        }  # fmt: skip
        return _message(self._pipeline.name, [notice])


@contextlib.contextmanager
def notified_of_waits(pipeline: NamedPipeline, call: Call) -> Iterator[None]:
    """Have `[airflow] notify` called for every long wait of this task that people don't know."""
    if not pipeline.airflow.notify:
        yield
        return
    handler = _Waits(Notifier(pipeline, "", call))
    logger = logging.getLogger(LONG_WAITS)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def page_address(pipeline: str, page: str) -> str:
    """Return the address of a page in Airflow; `page` may end with ``#`` and a place on it."""
    base = conf.get("api", "base_url", fallback="").rstrip("/")
    name, _, place = page.partition("#")
    query = f"?{urlencode({'pipeline': pipeline})}" if pipeline else ""
    return f"{base}/sluice/{name}{query}{'#' if place else ''}{place}"


class _Waits(logging.Handler):
    """Hand records of long waits on, with the task's context."""

    def __init__(self, notifier: Notifier) -> None:
        super().__init__()
        self._notifier = notifier

    def emit(self, record: logging.LogRecord) -> None:
        """Call the notifier. What it raises is logged: the task goes on."""
        from airflow.sdk import get_current_context

        context: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # Airflow's own: this is no task
            context = dict(get_current_context())
        try:
            self._notifier(context | {"exception": TaskWaits(record.getMessage())})
        except Exception:
            log.exception("the notifier failed")


def _messages(pipeline: str, due: list[dict[str, Any]]) -> Iterator[Message]:
    """Yield a message for each notice; tables that differ, and are so at one look, share one."""
    together: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for notice in due:
        shares = notice["kind"] == "differences"
        group = notice["kind"] if shares else notice["key"], bool(notice["over_ms"])
        together.setdefault(group, []).append(notice)
    for notices in together.values():
        yield _message(pipeline, notices)


def _message(pipeline: str, notices: list[dict[str, Any]]) -> Message:
    first, is_over = notices[0], bool(notices[0]["over_ms"])
    texts = [notice["text"] for notice in notices[:_MAX_TABLES]]
    option = f" --pipeline {pipeline}" if pipeline else ""
    url = page_address(pipeline, first["page"])
    if is_over:
        texts = [f"Over: {text.partition(chr(10))[0]}" for text in texts]
    command = f"{first['command'] if len(notices) == 1 else 'sluice verify'}{option}"
    if len(notices) > len(texts):
        texts.append(f"and {len(notices) - len(texts)} more tables")
    lines = [*texts, "", f"Command: {command}", f"Page: {url}"]
    if first["since_ms"]:
        lines.append(f"Since: {_utc(first['since_ms'])}")
    if is_over:
        lines.append(f"Until: {_utc(first['over_ms'])}")
    more = f" (and {len(notices) - 1} more)" if len(notices) > 1 else ""
    subject = f"Sluice{f' {pipeline}' if pipeline else ''}: {texts[0].partition(chr(10))[0]}"
    return Message(
        pipeline=pipeline,
        kind=first["kind"],
        key="\n".join(notice["key"] for notice in notices),
        subject=subject[:_MAX_SUBJECT_CHARS] + more,
        text="\n".join(lines),
        command=command,
        url=url,
        is_over=is_over,
    )


def _utc(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
