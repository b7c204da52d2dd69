"""What a step says beside its payload, by kind: the one place that knows the keys of STEP_SCHEMA's `detail`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from upstream.by_id import to_json
from upstream.ddl_job import DdlJob


@dataclass(frozen=True, slots=True)
class KeptRows:
    """A load of rows that stay though a DDL drops the partition they were in. `length`: bytes of the DDL step's payload
    that are its own, behind those of the loads before it.
    """

    schema: str
    table: str
    detail: Mapping[str, Any]
    """Of the load step."""
    rows: int
    commit_ts: int
    length: int

    def to_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> KeptRows:
        """The inverse of `to_json`."""
        return cls(**document)


@dataclass(frozen=True, slots=True)
class ScopedDdl(DdlJob):
    """A DDL job as far as it concerns the downstream: the tables that are replicated, under their names there."""

    merged: str = ""
    """The tables that its table is merged from downstream, in words; "" if from one."""
    only_if_empty: bool = False
    """A database goes only if nothing else is in it."""
    needs_schemas: tuple[str, ...] = ()
    """Databases that routes need, to be made first."""
    replaced_by: tuple[str, ...] | None = None
    """Statements that an operator has executed in its place."""
    kept: tuple[KeptRows, ...] = ()

    @classmethod
    def of(cls, job: DdlJob, **more: Any) -> Self:
        """A job with what it is beyond that."""
        return cls(**{field.name: getattr(job, field.name) for field in fields(DdlJob)} | more)

    def to_json(self) -> dict[str, Any]:
        """A DdlJob's and `before`; of the others what differs from the default."""
        document: dict[str, Any] = {**DdlJob.to_json(self), "before": to_json(self.before)}
        if self.merged:
            document["merged"] = self.merged
        if self.only_if_empty:
            document["only_if_empty"] = True
        if self.needs_schemas:
            document["needs_schemas"] = list(self.needs_schemas)
        if self.replaced_by is not None:
            document["replaced_by"] = list(self.replaced_by)
        if self.kept:
            document["kept"] = [rows.to_json() for rows in self.kept]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        statements = document.get("replaced_by")
        return cls.of(
            DdlJob.from_json(document),
            merged=str(document.get("merged") or ""),
            only_if_empty=bool(document.get("only_if_empty")),
            needs_schemas=tuple(document.get("needs_schemas") or ()),
            replaced_by=None if statements is None else tuple(map(str, statements)),
            kept=tuple(KeptRows.from_json(rows) for rows in document.get("kept") or ()),
        )
