"""Define a step's detail beside its payload: a class for each kind.

Each knows the keys of STEP_SCHEMA's `detail`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Self

from sluice.etl.changes.formats.layout import LoadLayout
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.id_maps import to_json
from sluice.tidb.schema import Index, Table


class StepDetail:
    """The detail of a step of one kind, beside its payload.

    A field with its default value isn't in the JSON.
    """

    __slots__ = ()
    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values by field; `from_json` is the inverse."""
        return _non_default_fields(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what `to_json` has written."""
        return cls(**document)


def _non_default_fields(detail: Any) -> dict[str, Any]:
    """Return a dataclass's fields that have no default, or another value than it."""
    kind = type(detail)
    if kind not in _DEFAULTS:
        _DEFAULTS[kind] = tuple((each.name, each.default) for each in fields(detail))
    found = ((name, getattr(detail, name), default) for name, default in _DEFAULTS[kind])
    return {
        name: value for name, value, default in found if value is not default and value != default
    }


_DEFAULTS: dict[type[Any], tuple[tuple[str, Any], ...]] = {}


# Not frozen: that takes several times as long to make, and there is one for each statement.
@dataclass(slots=True, unsafe_hash=True)
class RowsDetail(StepDetail):
    """The common part of delete and load steps."""

    first_ts: int
    """The first commit timestamp that the rows come from; the step's own is the last."""
    safe: bool = False
    """Safe mode: as many of the rows are removed or replaced as there are."""
    absent: bool = False
    """Set if what is done may be done already.

    Then nothing is written, but none of these rows may be there.
    """
    source: str = ""
    """The upstream's name of a table that is merged with others downstream."""
    worker: int | None = None
    """The session that executes it, by the planner `groups`."""
    keeps_deleted: bool = False
    """Set if rows stay that are gone upstream, so no key but the primary one may be unique."""


@dataclass(frozen=True, slots=True)
class ListedRows:
    """Rows without a key that are to go.

    The payload is a statement for each that differs, and behind them the same rows as text, as in
    a load step, so that all can be found at once.
    """

    lengths: tuple[int, ...]
    """Bytes of each statement."""
    counts: tuple[int, ...]
    """Rows that each statement has to remove: so many are equal."""
    layout: LoadLayout
    """Layout of a line of the text.

    The first column isn't the table's: it is the number of the statement, from 0.
    """

    def to_json(self) -> dict[str, Any]:
        """Return JSON values by field; `from_json` is the inverse."""
        return {"lengths": self.lengths, "counts": self.counts, "layout": self.layout.to_json()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what `to_json` has written."""
        return cls(
            tuple(document["lengths"]),
            tuple(document["counts"]),
            LoadLayout.from_json(document["layout"]),
        )


# Not frozen: that takes several times as long to make, and there is one for each statement.
@dataclass(slots=True, unsafe_hash=True)
class DeleteDetail(RowsDetail):
    """Rows go, or end as versions of a row.

    The payload is the statement; it must concern exactly the step's `rows`. With `listed` there are
    several, and each must remove its own count.
    """

    kind: ClassVar[str] = "delete"
    listed: ListedRows | None = None

    def to_json(self) -> dict[str, Any]:
        document = _non_default_fields(self)
        return document if self.listed is None else document | {"listed": self.listed.to_json()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        listed = document.get("listed")
        return cls(
            **{**document, "listed": None if listed is None else ListedRows.from_json(listed)}
        )


# Not frozen: that takes several times as long to make, and there is one for each statement.
@dataclass(slots=True, unsafe_hash=True)
class LoadDetail(RowsDetail):
    """Rows come.

    The payload is their text (`sluice.etl.changes.formats.load_data`); REPLACE must remove exactly
    `replaces` rows.
    """

    kind: ClassVar[str] = "load"
    layout: LoadLayout = field(kw_only=True)
    replaces: int = 0
    keys: tuple[str, ...] = ()
    """Columns that identify the table's rows; () if only all of them together do."""
    warnings: int = 0
    """Number of warnings that the server gives, see `LoadChunk`."""

    def to_json(self) -> dict[str, Any]:
        document = _non_default_fields(self)
        del document["layout"]
        return document | {"layout": self.layout.to_json()}  # last: `detail_from_text` counts on it

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        more = {
            "layout": LoadLayout.from_json(document["layout"]),
            "keys": tuple(document.get("keys", ())),
        }
        return cls(**{**document, **more})


@dataclass(frozen=True, slots=True)
class HoldAsBytes(StepDetail):
    """Columns that are to hold bytes that are no text, before a change set is written."""

    kind: ClassVar[str] = "bytes"
    columns: tuple[str, ...]
    last_ts: int
    """The commit timestamp through which the upstream has such values."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(tuple(document["columns"]), document["last_ts"])


@dataclass(frozen=True, slots=True)
class DroppedUniqueIndex:
    """A unique index that the upstream enforces no longer."""

    name: str
    """PRIMARY for the primary key."""
    columns: tuple[tuple[str, int], ...]
    """Each with how much of it is indexed, in characters or bytes; not above 0 for all of it."""

    @classmethod
    def from_index(cls, index: Index) -> Self:
        """Return the index as the upstream's schema has it."""
        columns = tuple((name, length) for name, _, length in index.columns)
        return cls("PRIMARY" if index.primary else index.name, columns)


@dataclass(frozen=True, slots=True)
class DropUniqueness(StepDetail):
    """Indexes that may have values twice from here on."""

    kind: ClassVar[str] = "relax"
    indexes: tuple[DroppedUniqueIndex, ...]

    @classmethod
    def from_table(cls, table: Table, ids: frozenset[int]) -> Self:
        """Return the indexes of a table with these ids."""
        return cls(
            tuple(
                DroppedUniqueIndex.from_index(index) for index in table.indexes if index.id in ids
            )
        )

    def to_json(self) -> dict[str, Any]:
        return {"indexes": [[index.name, index.columns] for index in self.indexes]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        pairs = (
            (name, tuple((column, length) for column, length in columns))
            for name, columns in document["indexes"]
        )
        return cls(tuple(DroppedUniqueIndex(name, columns) for name, columns in pairs))


@dataclass(frozen=True, slots=True)
class InFlightDetail(StepDetail):
    """All after `after_ts` (TSO) through the step's `commit_ts` is in flight from here on."""

    kind: ClassVar[str] = "flight"
    after_ts: int
    left_out: tuple[int, ...] = ()
    """Commit timestamps of the transactions inside that are ignored."""
    channel: int | None = None
    """As `CommitDetail.channel`."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            document["after_ts"], tuple(document.get("left_out", ())), document.get("channel")
        )


@dataclass(frozen=True, slots=True)
class FlushDetail(StepDetail):
    """All sessions commit what they have before any goes on."""

    kind: ClassVar[str] = "flush"


class MessageSchema(NamedTuple):
    """A schema of messages; where a registry has it, they hold its number in a step's detail."""

    record: str
    """The full name of its record; in the Simple protocol of its table."""
    part: str
    """`key` or `value`: what of messages it describes; in the Simple protocol `table` and its
    version.
    """
    text: str


@dataclass(frozen=True, slots=True)
class TransactionDetail(StepDetail):
    """Whole records (`sluice.etl.changes.formats.binlog_file`) are the payload, or a piece of one.

    A piece is of one that is too large for a step.
    """

    kind: ClassVar[str] = "transaction"
    transactions: int
    """Number of transactions that end in the step."""
    more: bool = False
    """On all pieces of a record but the last."""
    schemas: tuple[MessageSchema, ...] = ()
    """Schemas by the numbers that the payload's messages have."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        schemas = tuple(MessageSchema(*each) for each in document.get("schemas", ()))
        return cls(**{**document, "schemas": schemas})


@dataclass(frozen=True, slots=True)
class CommitDetail(StepDetail):
    """The checkpoint goes to the step's `commit_ts`."""

    kind: ClassVar[str] = "commit"
    schema_version: int | None = None
    """The upstream's then; None in the middle of a window."""
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    """Duration of the stages of preparing."""
    warnings: tuple[str, ...] = ()
    counts: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    """The row changes it completes by table, under its name upstream: (inserts, updates, deletes).
    """
    rows_through: int = 0
    """The timestamp behind the step's own, if all rows committed at it are downstream now.

    DDL of the same timestamp follows.
    """
    returned: int = 0
    """Transactions that were left out because they came from downstream."""
    channel: int | None = None
    """The channel that the transaction is marked with; None: the session's."""
    channels_through: tuple[int, ...] = ()
    """Channels, if of all rows committed at `rows_through` only those of these are downstream."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        counts = {name: tuple(kinds) for name, kinds in document.get("counts", {}).items()}
        return cls(
            **{
                **document,
                "warnings": tuple(document.get("warnings", ())),
                "counts": counts,
                "channels_through": tuple(document.get("channels_through", ())),
            }
        )


@dataclass(frozen=True, slots=True)
class SurvivingRows:
    """A load of rows that stay though a DDL drops the partition they were in.

    `length`: bytes of the DDL step's payload that are its own, behind those of the loads before it.
    """

    schema: str
    table: str
    detail: LoadDetail
    """Detail of the load step."""
    rows: int
    commit_ts: int
    length: int

    def to_json(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)} | {
            "detail": self.detail.to_json()
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SurvivingRows:
        """Read what `to_json` has written."""
        return cls(**{**document, "detail": LoadDetail.from_json(document["detail"])})


@dataclass(frozen=True, slots=True)
class MovedSource:
    """What a DDL makes of the rows of one source in a merged table.

    They are those of `schema`.`table` whose `column` is `old`; `new` is the source's new name, ""
    if its rows are gone.
    """

    schema: str
    table: str
    column: str
    old: str
    new: str = ""

    def to_json(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, slots=True)
class ScopedDdl(DdlJob, StepDetail):
    """A DDL job as far as it concerns the downstream; the detail of a ddl step.

    It has the tables that are replicated, under their names there.
    """

    kind: ClassVar[str] = "ddl"
    merged: str = ""
    """The tables that its table is merged from downstream, in words; "" if from one."""
    only_if_empty: bool = False
    """A database goes only if nothing else is in it."""
    needs_schemas: tuple[str, ...] = ()
    """Databases that routes need, to be made first."""
    replaced_by: tuple[str, ...] | None = None
    """Statements that an operator has executed in its place."""
    kept: tuple[SurvivingRows, ...] = ()
    has_companions: bool = False
    """DDL of the same commit_ts follows."""
    left_out: tuple[str, ...] = ()
    """Columns of its tables, before or after it, that rules leave out."""
    moved_sources: tuple[MovedSource, ...] = ()
    renamed_for_source: tuple[tuple[str, str], ...] = ()
    """(New, old) names of columns that one source of a merged table renames, and others may not."""
    shapes: bool = False
    """Whether rules mask or rename columns of its tables, before or after it."""

    @classmethod
    def from_job(cls, job: DdlJob, **more: Any) -> Self:
        """Return a job with what it is beyond that."""
        return cls(**{each.name: getattr(job, each.name) for each in fields(DdlJob)} | more)

    def to_json(self) -> dict[str, Any]:
        """Return a DdlJob's and `before`; of the others what differs from the default."""
        document: dict[str, Any] = {**DdlJob.to_json(self), "before": to_json(self.before)}
        if self.merged:
            document["merged"] = self.merged
        if self.only_if_empty:
            document["only_if_empty"] = True
        if self.needs_schemas:
            document["needs_schemas"] = list(self.needs_schemas)
        if self.replaced_by is not None:
            document["replaced_by"] = list(self.replaced_by)
        if self.has_companions:
            document["has_companions"] = True
        if self.left_out:
            document["left_out"] = list(self.left_out)
        if self.moved_sources:
            document["moved_sources"] = [moved.to_json() for moved in self.moved_sources]
        if self.renamed_for_source:
            document["renamed_for_source"] = [list(names) for names in self.renamed_for_source]
        if self.shapes:
            document["shapes"] = True
        if self.kept:
            document["kept"] = [rows.to_json() for rows in self.kept]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what `to_json` has written."""
        statements = document.get("replaced_by")
        return cls.from_job(
            DdlJob.from_json(document),
            merged=str(document.get("merged") or ""),
            only_if_empty=bool(document.get("only_if_empty")),
            needs_schemas=tuple(document.get("needs_schemas") or ()),
            replaced_by=None if statements is None else tuple(map(str, statements)),
            kept=tuple(SurvivingRows.from_json(rows) for rows in document.get("kept") or ()),
            has_companions=bool(document.get("has_companions")),
            left_out=tuple(document.get("left_out") or ()),
            moved_sources=tuple(
                MovedSource(**moved) for moved in document.get("moved_sources") or ()
            ),
            renamed_for_source=tuple(
                (str(new), str(old)) for new, old in document.get("renamed_for_source") or ()
            ),
            shapes=bool(document.get("shapes")),
        )


@dataclass(frozen=True, slots=True)
class LatestImagesDetail(StepDetail):
    """The newest images of a table's rows, see `sluice.etl.changes.write_plans.latest_images`."""

    kind: ClassVar[str] = "newest"
    table_id: int
