"""A job's request: recorded once, never changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from sluice.relay.json_codec import OMIT_DEFAULT, JsonDocument
from sluice.tidb.table_name import abbreviate

MAX_NAMES_SHOWN = 5
"""Of the tables that a job touches: they stand in one line with its kind and its state."""

__all__ = ["JobSpec", "WriteScope", "with_landed_end"]


@dataclass(frozen=True, slots=True)
class WriteScope(JsonDocument):
    """The tables that a job writes to.

    `downstream` is its name (`sluice.etl.downstream.ownership.downstream_name`), "" stands for any;
    `tables` are full names there, None means all of it.
    """

    JSON_COMPLETE: ClassVar = True

    downstream: str
    tables: tuple[str, ...] | None = None

    def shared(self, other: WriteScope) -> tuple[str, ...] | None:
        """Return the tables that both touch, in lower case, as far as either names any.

        () if they have none in common, None if all of the downstream.
        """
        if self.downstream and other.downstream and self.downstream != other.downstream:
            return ()
        mine, others = _lower(self.tables), _lower(other.tables)
        if mine is None or others is None:
            named = others if mine is None else mine
            return None if named is None else tuple(sorted(named))
        return tuple(sorted(mine & others))

    def __str__(self) -> str:
        if self.tables is None:
            return f"all of {self.downstream or 'the downstream'}"
        return abbreviate(self.tables, MAX_NAMES_SHOWN) or "nothing that is written to"


@dataclass(frozen=True, slots=True)
class JobSpec(JsonDocument):
    """A job as it was requested.

    `asked` is the kind's own, as JSON values without secrets; `by` is the person or program that
    asked; `token` is unique to the job.
    """

    JSON_NAME: ClassVar = "a job's specification"
    JSON_FIELDS: ClassVar = {"pipeline": OMIT_DEFAULT}

    id: str
    kind: str
    asked: Mapping[str, Any]
    touches: WriteScope
    by: str
    made_ms: int
    token: str
    pipeline: str = ""
    """The pipeline of the job, if several read the relay log (`sluice.relay.pipeline_folders`)."""

    def is_same(self, asked: Mapping[str, Any]) -> bool:
        """Return whether the job was asked for the same.

        An `until` of 0 (see `with_landed_end`) equals the end that was found when it was asked.
        """
        open_end = {"until": 0} if asked.get("until") == 0 else {}
        return {**self.asked, **open_end} == {**asked}

    def __str__(self) -> str:
        return (
            f"{self.id} ({self.kind} of {self.touches}, asked for by {self.by},"
            f" {format_ms(self.made_ms)})"
        )


def with_landed_end(request: Any, relay: Any) -> Any:
    """Return a request with `until` (TSO) set to the end of what is landed now, if it is 0."""
    last = None if request.until else relay.last()
    return request if last is None else replace(request, until=last.hi)


def format_ms(ms: int) -> str:
    """Format a Unix time in ms for people."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _lower(names: Iterable[str] | None) -> set[str] | None:
    return None if names is None else {name.lower() for name in names}
