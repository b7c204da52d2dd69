"""Store aligned chunks: rows as of a TSO C, written downstream at checkpoint C.

    <url>/aligned-chunks/<C>.json            the chunk: which rows, and what is to be done
    <url>/aligned-chunks/<C>.outcome.json    {"ready": …}: what was read, and where the files are;
                                             {"void": …}: the chunk is cancelled
    <url>/aligned-chunks/<name>.repair.json  tables under repair: rows are missing downstream

`<C>` is padded to 20 digits. Every file is created exclusively and never changed. A *job* creates
chunks; *apply*, the process that writes downstream, executes them.

1. The job takes a TSO from PD, adds some 300 ms (`sluice.tidb.tso.span`) and creates the chunk at
   that C. Then it takes a TSO again. If that has reached C, the chunk came too late: the job
   cancels it and creates another, with more time. So apply can't pass C without having seen the
   chunk. A window `(lo, hi]` with hi >= C was planned with a TSO of at least C, which PD gave after
   the job's second TSO, when the chunk existed already. Apply lists the chunks after it has read
   the record of the last window that it takes. A batch that was prepared before ends below C. So
   apply needs one listing a batch, and none when it commits.
2. When PD's clock is past C, the job reads the rows with `tidb_snapshot` = C. It writes them as
   files (`LoadFile`: one LOAD DATA statement each) under its own folder in the relay log, and
   settles the chunk as ready. Apply waits for that at C, and cancels the chunk itself if it takes
   too long. `settle` returns the outcome that came first, which holds.
3. Apply ends a batch at C. With the checkpoint at exactly C it waits for the outcome. If that is
   ready, apply executes the chunk in one transaction. The transaction begins by locking the
   checkpoint row and comparing it (C, and the process's own token). It also writes the chunk
   result, under (job, C), into the downstream itself (`sluice.etl.downstream.chunk_results`). So
   the chunk is executed once, at C, or never.
4. Apply may decline a ready chunk: the table at C is another than the one that was read, the
   downstream can't take the rows, or a file is damaged. Apply writes that as the chunk result, with
   the reason, and goes on.
5. The job waits for the chunk result. None will come, and nothing was written, if the checkpoint,
   read behind its row's lock, is past C and a look *afterwards* finds no result. Then, and after a
   cancelled chunk, the job reads the same rows again for another chunk.
6. The job removes the chunk when it has seen the result, or knows that none will come. Before, it
   may not, unless the job is over.

An apply process that begins with the checkpoint at C finds the chunk and goes on with 3; the chunk
result shows whether it was executed. A job that continues after a kill goes through its chunks
(`of_job`). It cancels those without outcome, and waits for the result of the ready ones before it
creates another one for the same rows. Two chunks may be pending, at different C. A chunk behind the
checkpoint is over, whichever process left it there.

*Leftovers.* A chunk is created before its outcome and removed before it, so an outcome without a
chunk is useless. It exists for a moment while a job removes both, or when apply settles a chunk
that the job has just removed: a process that settles looks afterwards whether the chunk still
exists, and removes the outcome if not. So only a process that is killed in between leaves one. A
job that is cancelled while a chunk is ready and nothing applies leaves the chunk. `sweep` removes
both, and every job calls it, at its beginning and its end.

`sweep` may run beside jobs and apply, though a listing is no single moment. It checks that a chunk
is gone after it has seen the outcome, so the chunk was not being settled in between, and a chunk at
a past C isn't created again. (At a future C only void outcomes are left behind. A new chunk there
is void from the beginning, or, if `sweep` ran meanwhile, a chunk like any other.) A chunk of a job
that is over may go at any time: apply either has seen that it is ready, and writes it, as of C and
rightly, or passes C without it.

The checkpoint doesn't reach C while operators have paused applying or hold it at an earlier
timestamp (`relay.Control`), while landing is paused, or while no process applies. Then the job
waits, or cancels the chunk with the reason. For a due chunk, landing lands an empty window if the
upstream has no traffic.

*Tables under repair.* Apply checks that the rows it removes and replaces exist, and stops if not. A
job that knows that rows of a table may be missing downstream calls `begin_repair` before its first
chunk. From then on changes to these tables are written so that they lead to the right rows whatever
is downstream. A chunk may also remove rows outside of its own range that stand in its way, because
they hold a unique value that upstream another row has now. So every job that copies a whole table
puts it under repair. A job that copies a part may, as missing rows may be why it was started. The
job ends the repair (`end_repair`) when it has the result of its last chunk: from then on every row
is downstream, and changes are checked again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from sluice.errors import RequestError
from sluice.relay.errors import RelayCorruptError, RelayError
from sluice.relay.format_version import parse_json
from sluice.relay.json_codec import JsonDocument, from_values, to_bytes
from sluice.relay.storage import Storage
from sluice.tidb.table_name import full_name

REPLACE, MISSING, COMPARE = "replace", "missing", "compare"
_FOLDER = "aligned-chunks"
_NAME = re.compile(r"(\d{20})\.json\Z")
_OUTCOME = re.compile(r"(\d{20})\.outcome\.json\Z")
_REPAIR_NAME = re.compile(r"([A-Za-z0-9_.-]+)\.repair\.json\Z")


class AlignedChunkExistsError(RequestError, RelayError):
    """An aligned chunk exists already at this timestamp."""

    hint = "take another timestamp"


@dataclass(frozen=True, slots=True)
class AlignedChunk(JsonDocument):
    """Rows of one upstream table, to be brought downstream at `at_ts` (C, a TSO).

    The rows are those for which `condition` holds. It is SQL over columns of the table's key alone
    (`key` names those it uses), so it holds for a row upstream exactly if it holds for the row with
    that key downstream; "" is the whole table. With `listed` only the rows that are read count:
    others stay, whatever they are.
    """

    JSON_NAME: ClassVar = "an aligned chunk"
    JSON_COMPLETE: ClassVar = True

    at_ts: int
    job: str
    number: int
    """The chunk's number in its job, for people."""
    table_id: int
    schema: str
    table: str
    how: str = REPLACE
    """The mode: `replace`, `missing` or `compare`.

    `replace`: the rows become what they are upstream, and rows that upstream doesn't have are
    removed. `missing`: rows are added whose key isn't downstream. `compare`: nothing is written;
    the chunk result lists the differences.
    """
    condition: str = ""
    key: tuple[str, ...] = ()
    listed: bool = False
    is_whole: bool = False
    """The job brings every row of the table, this chunk and others, so a row that stands in the way
    of one may go.
    """
    made_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def __post_init__(self) -> None:
        if self.how not in (REPLACE, MISSING, COMPARE):
            raise ValueError(f"how: {self.how!r}: expected {REPLACE}, {MISSING} or {COMPARE}")

    @property
    def full_name(self) -> str:
        """Return `schema.table` upstream."""
        return full_name(self.schema, self.table)


@dataclass(frozen=True, slots=True)
class LoadFile:
    """A file with the text of one LOAD DATA statement.

    `sluice.etl.changes.formats.load_data` makes it. `path`: in the relay's storage. `warnings`: the
    number that the server will give for it. `bytes`, `crc32c` (`google_crc32c.value`) of the file.
    """

    path: str
    layout: Mapping[str, Any]
    rows: int
    warnings: int
    bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class ChunkReady:
    """The rows are read.

    `table`: its definition as they were read, `sluice.tidb.schema.Table.to_json()`. It was the
    upstream's at `defined_ts` (TSO, at most C); apply declines if a DDL changed it after that and
    through C, or its own rules mask others than `masks`, the masks of columns of the rows.
    """

    table: Mapping[str, Any]
    defined_ts: int
    loads: tuple[LoadFile, ...] = ()
    masks: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Return the bytes of all files."""
        return sum(load.rows for load in self.loads)


@dataclass(frozen=True, slots=True)
class ChunkCancelled:
    """A chunk is cancelled. `why`: for people; `by`: `job` or `apply`."""

    why: str
    by: str


Outcome = ChunkReady | ChunkCancelled
_OUTCOMES: dict[str, type[Outcome]] = {"ready": ChunkReady, "void": ChunkCancelled}
REMOVED = ChunkCancelled("its job has removed it", "job")


@dataclass(frozen=True, slots=True)
class TableRepair(JsonDocument):
    """Upstream tables (ids) of which rows are missing downstream until the job has copied them.

    `name` is the file's: the job's id, with a suffix where a job has several.
    """

    JSON_NAME: ClassVar = "a table of which rows are missing (repair)"
    JSON_COMPLETE: ClassVar = True

    name: str
    job: str
    tables: tuple[int, ...]
    made_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)


@dataclass(frozen=True, slots=True)
class PendingChunks:
    """The chunks and repairs that apply needs to know.

    `pending`: chunks that aren't cancelled, ascending. The rest: ids of the tables under repair.
    """

    pending: tuple[AlignedChunk, ...] = ()
    tables_under_repair: frozenset[int] = frozenset()


T = TypeVar("T")


class AlignedChunks:
    """The aligned chunks in a relay log.

    Every method raises OSError, and RelayCorruptError that names the file.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._read_before: dict[str, Any] = {}
        """Files never change, so each is read once."""

    # A job's

    def make(self, aligned_chunk: AlignedChunk) -> None:
        """Durably create it. Raises AlignedChunkExistsError if there is one at this timestamp."""
        path = _path(aligned_chunk.at_ts)
        try:
            self._storage.create(path, aligned_chunk.to_bytes())
        except FileExistsError:
            raise AlignedChunkExistsError(
                f"{self._storage.url}/{path} exists: there is an aligned chunk at"
                f" {aligned_chunk.at_ts}"
                " already"
            ) from None

    def of_job(self, job: str) -> list[AlignedChunk]:
        """Return a job's aligned chunks, ascending, void ones among them."""
        found = (self._chunk(at_ts) for at_ts in _timestamps(_NAME, self._names()))
        return [
            aligned_chunk
            for aligned_chunk in found
            if aligned_chunk is not None and aligned_chunk.job == job
        ]

    def remove(self, at_ts: int) -> None:
        """Remove a chunk and its outcome; no error if they are gone."""
        self._storage.remove(_path(at_ts))  # first: without its outcome it would be pending again
        self._storage.remove(_outcome_path(at_ts))

    def sweep(self, is_over: Callable[[str], bool]) -> None:
        """Remove chunks and repairs of jobs that are over, and outcomes without a chunk."""
        names = self._names()
        made = _timestamps(_NAME, names)
        for at_ts in made:
            aligned_chunk = self._chunk(at_ts)
            if aligned_chunk is not None and is_over(aligned_chunk.job):
                self.remove(at_ts)
        for repair in self._repairs(names):
            if is_over(repair.job):
                self.end_repair(repair.name)
        for at_ts in set(_timestamps(_OUTCOME, names)).difference(made):
            if not self.exists(at_ts):  # it may have been made while the names were listed
                self._storage.remove(_outcome_path(at_ts))

    def begin_repair(self, repair: TableRepair) -> None:
        """Record a repair durably; no error if a file of that name exists already."""
        if not _REPAIR_NAME.match(f"{repair.name}.repair.json"):
            raise ValueError(
                f"invalid name {repair.name!r}: letters, digits, -, _ and . can be in it"
            )
        try:
            self._storage.create(_repair_path(repair.name), repair.to_bytes())
        except FileExistsError:
            return

    def end_repair(self, name: str) -> None:
        """End a repair, once every row is downstream; no error if it has ended before."""
        self._storage.remove(_repair_path(name))

    # Both sides'

    def settle(self, at_ts: int, outcome: Outcome) -> Outcome:
        """Record a chunk's outcome durably, unless it has one, and return the outcome that holds.

        A chunk that is removed is cancelled.
        """
        path = _outcome_path(at_ts)
        try:
            self._storage.create(path, to_bytes({_kind_of(outcome): outcome}))
        except FileExistsError:
            return self.outcome(at_ts) or outcome
        if self.exists(at_ts):
            return outcome
        self._storage.remove(path)  # no job would, any more
        return REMOVED

    def exists(self, at_ts: int) -> bool:
        """Return whether there is an aligned chunk at this timestamp now."""
        try:
            self._storage.read(_path(at_ts))
        except FileNotFoundError:
            return False
        return True

    def outcome(self, at_ts: int) -> Outcome | None:
        """Return a chunk's outcome, None if it has none yet."""
        return self._small(_outcome_path(at_ts), _parse_outcome)

    def repairs(self) -> list[TableRepair]:
        """List the tables under repair."""
        return self._repairs(self._names())

    # Apply's

    def agenda(self, from_ts: int) -> PendingChunks:
        """Return the chunks at `from_ts` (TSO) and later.

        It takes one listing; each file is read once.
        """
        names = self._names()
        if not names:
            return PendingChunks()
        settled = set(_timestamps(_OUTCOME, names))
        pending = []
        for at_ts in _timestamps(_NAME, names):
            if at_ts < from_ts or (
                at_ts in settled and isinstance(self.outcome(at_ts), ChunkCancelled)
            ):
                continue
            aligned_chunk = self._chunk(at_ts)
            if aligned_chunk is not None:
                pending.append(aligned_chunk)
        tables = frozenset(table for repair in self._repairs(names) for table in repair.tables)
        return PendingChunks(tuple(pending), tables)

    def due(self, after_ts: int, now_ts: int) -> bool:
        """Return whether there is an aligned chunk behind `after_ts` and through `now_ts` (TSOs).

        One listing.
        """
        return any(after_ts < at_ts <= now_ts for at_ts in _timestamps(_NAME, self._names()))

    # Inside

    def _names(self) -> list[str]:
        names = self._storage.names(_FOLDER)
        for gone in self._read_before.keys() - {f"{_FOLDER}/{name}" for name in names}:
            self._read_before.pop(gone, None)
        return names

    def _chunk(self, at_ts: int) -> AlignedChunk | None:
        return self._small(_path(at_ts), AlignedChunk.from_bytes)

    def _repairs(self, names: list[str]) -> list[TableRepair]:
        found = (
            self._small(_repair_path(match[1]), TableRepair.from_bytes)
            for match in map(_REPAIR_NAME.match, names)
            if match
        )
        return [repair for repair in found if repair is not None]

    def _small(self, path: str, parse: Callable[[bytes], T]) -> T | None:
        """Return a file's content, parsed; None if there is no such file."""
        if path not in self._read_before:
            try:
                self._read_before[path] = parse(self._storage.read(path))
            except FileNotFoundError:
                return None
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise RelayCorruptError(
                    f"{self._storage.url}/{path}: {error}",
                    hint=(
                        "remove the file; its job makes another aligned chunk, or ends with an"
                        " error"
                    ),
                ) from None
        found: T = self._read_before[path]
        return found


def _parse_outcome(data: bytes) -> Outcome:
    name = "the outcome of an aligned chunk"
    ((kind, raw),) = parse_json(data, name).items()
    if kind not in _OUTCOMES:
        raise ValueError(f"the outcome {kind!r} is neither ready nor void")
    return from_values(_OUTCOMES[kind], raw, name)


def _kind_of(outcome: Outcome) -> str:
    return "ready" if isinstance(outcome, ChunkReady) else "void"


def _timestamps(pattern: re.Pattern[str], names: list[str]) -> list[int]:
    return sorted(int(match[1]) for match in map(pattern.match, names) if match)


def _path(at_ts: int) -> str:
    return f"{_FOLDER}/{at_ts:020d}.json"


def _outcome_path(at_ts: int) -> str:
    return f"{_FOLDER}/{at_ts:020d}.outcome.json"


def _repair_path(name: str) -> str:
    return f"{_FOLDER}/{name}.repair.json"
