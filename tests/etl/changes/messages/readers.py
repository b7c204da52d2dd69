"""The reader of each format, with the options whose messages it reads without loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluice.etl.changes.messages import MessageFormat
from tests.etl.changes.messages.canal_reader import CanalReader

READERS: dict[str, tuple[MessageFormat, Callable[[], Any]]] = {
    "canal-json": (MessageFormat("canal-json"), CanalReader),
    "canal-json, changed columns": (
        MessageFormat("canal-json", content_compatible=True),
        CanalReader,
    ),
}
