"""Define the requests for a restore, into a database or files: moment, tables, target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from sluice.etl.changes.rules import SchemaPattern, filter_for_tables
from sluice.etl.history.as_of.output import FORMATS
from sluice.etl.restore.errors import RestoreError
from sluice.etl.settings import Settings, with_target
from sluice.relay.json_codec import JsonDocument

__all__ = ["SAME_SERVER_INTO", "FilesRequest", "RestoreRequest"]

SAME_SERVER_INTO = "{schema}_restored"
_MAX_NAME_CHARS = 64
_MAX_ROWS, _MAX_BYTES = 100_000, 64 << 20
"""Minimum sizes of a batch of changes: no reader waits for the first of them, and more changes
cancel out in larger ones.
"""


@dataclass(frozen=True, slots=True)
class RestoreRequest(JsonDocument):
    """A request to restore all that was committed through `until`.

    `until`: TSO, 0: all that is landed at the request; of the tables that fit one of `tables` then
    (globs of ``schema.table``; () for all), into databases with the names that `into` makes of the
    upstream's, on the server of `target`, see `sluice.etl.settings.read_target` ({}: the pipeline's
    own). `replacing`: existing tables there, by their full names, that are to be replaced.
    `verify`: compare every table with the state that Spark computes.
    """

    KIND: ClassVar = "restore"
    """Kind of the jobs that do it."""
    JSON_COMPLETE: ClassVar = True

    until: int
    tables: tuple[str, ...] = ()
    into: str = SAME_SERVER_INTO
    target: Mapping[str, Any] = field(default_factory=dict)
    replacing: tuple[str, ...] = ()
    verify: bool = True

    def check(self) -> None:
        """Raise RestoreError for a pattern that makes no names of databases."""
        if "{schema}" not in self.into:
            raise RestoreError(
                f"the pattern {self.into!r} for names of databases must contain {{schema}}, such as"
                f" {SAME_SERVER_INTO}: otherwise tables of two databases could meet"
            )

    def target_schema(self, schema: str) -> str:
        """Return where the tables of an upstream's database go.

        Raises RestoreError for what no server takes for a name.
        """
        name = self.into.replace("{schema}", schema)
        if len(name) > _MAX_NAME_CHARS:
            raise RestoreError(
                f"{schema} would become {name}, which has more than {_MAX_NAME_CHARS} characters"
            )
        return name

    def server(self, pipeline: Settings) -> Settings:
        """Return the pipeline's settings with the target server. Raises SettingsError."""
        return with_target(pipeline, self.target) if self.target else pipeline

    def settings(
        self, pipeline: Settings, scratch: str, names: Iterable[tuple[str, str]]
    ) -> Settings:
        """Return the settings by which changes are applied.

        `names` are the upstream's (schema, table), `scratch` the database in which checkpoint and
        dropped tables are kept until it is over.
        """
        own = self.server(pipeline)
        downstream = replace(own.downstream, checkpoint_schema=scratch, recycle_schema=scratch)
        limits = replace(
            own.apply,
            max_rows=max(own.apply.max_rows, _MAX_ROWS),
            max_bytes=max(own.apply.max_bytes, _MAX_BYTES),
        )
        routes = SchemaPattern.from_pattern(self.into)
        filters = filter_for_tables(
            names, (pipeline.downstream.checkpoint_schema, pipeline.downstream.recycle_schema)
        )
        if pipeline.lands_masked:  # what is restored is masked, and its columns say so
            filters = filters.with_masks_of(pipeline.filters)
        return replace(
            own,
            downstream=downstream,
            apply=limits,
            filters=filters,
            routes=routes,
            ignored_ts=frozenset(),
        )


@dataclass(frozen=True, slots=True)
class FilesRequest(JsonDocument):
    """Everything that was committed through `until` (TSO.

    0: all that is landed when it is asked for), of the tables that fit one of `tables` then (globs
    of ``schema.table``; () for all), as files of the format `kind` (parquet, csv, sql) in `folder`.
    `beside`: other files may be there.
    """

    KIND: ClassVar = "restore-files"
    """Kind of the jobs that do it."""
    JSON_COMPLETE: ClassVar = True

    until: int
    tables: tuple[str, ...]
    folder: Path
    kind: str = "parquet"
    beside: bool = False

    def check(self) -> None:
        """Raise RestoreError for an unknown format."""
        if self.kind not in FORMATS:
            raise RestoreError(f"unknown file format {self.kind!r}; there are {', '.join(FORMATS)}")

    def to_json(self) -> dict[str, Any]:
        """Return JSON values in the order of the files that have them; `from_json` reads them."""
        return self.asked() | {"folder": str(self.folder), "beside": self.beside}

    def asked(self) -> dict[str, Any]:
        """Return the request as the manifest has it."""
        return {"until": self.until, "tables": list(self.tables), "kind": self.kind}
