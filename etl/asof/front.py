"""Tables of the past: as of a moment, or what became different between two, from the archive and its bases."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from etl.archive import archive_through
from etl.asof.advance import schema
from etl.asof.by_spark import BySpark
from etl.asof.computing import Asked, AsOfTable, ask
from etl.asof.diff import diff_schema
from etl.asof.fingerprint import Fingerprint
from etl.asof.finishing import Differences, Files, Fingerprints, Finish, Result, Rows, from_ipc
from etl.asof.plan import Plan
from etl.asof.planning import Start
from etl.asof.versions import Version
from etl.copy.base_source import BaseSource
from etl.settings import Settings
from relay.archive import Archive, BaseFile, Hold, Holds
from upstream import tso

Run = Callable[[Plan, Finish], Iterator[Result]]
"""Where a plan is carried out: `BySpark`, or `etl.asof.by_spark.here`."""


@dataclass(frozen=True, slots=True)
class Past:
    """What `tables_as_of` and `differences_between` give: nothing is read before one of the methods is called, each of
    which computes anew. They raise AsOfError, relay errors, RemovedError, SparkError.
    """

    archive_url: str
    asked: Asked
    bases: tuple[str, ...]
    run: Run
    moments: tuple[int, ...]

    @property
    def tables(self) -> Mapping[str, AsOfTable]:
        """At the (later) moment, by `schema.table`."""
        return self.asked.tables[self.moments[-1]]

    @property
    def skipped(self) -> tuple[int, ...]:
        """Commit timestamps of transactions that are left out, since operators had them left out."""
        return self.asked.skipped

    def rows(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Chunks of rows with their table's name, in no order: the stored columns but those left out, in types and
        texts of `upstream.rows.arrow_schema`. There is no chunk of a table without rows.
        """
        for result in self._results(Rows()):
            for batch in from_ipc(result.payload):
                yield result.name, batch

    def fingerprints(self) -> dict[str, Fingerprint]:
        """Of each table's rows."""
        found = dict.fromkeys(self.tables, Fingerprint())
        for result in self._results(Fingerprints()):
            found[result.name] += Fingerprint.from_json(json.loads(result.payload))
        return found

    def files(self, folder: str) -> dict[str, list[BaseFile]]:
        """The rows as files of a base, written by Spark's workers below `folder` of the archive, by table."""
        found: dict[str, list[BaseFile]] = {name: [] for name in self.tables}
        for result in self._results(Files(self.archive_url, folder)):
            found[result.name].append(BaseFile.from_json(json.loads(result.payload)))
        return found

    def differences(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """What became different between the two moments, by table, see `etl.asof.diff`."""
        for result in self._results(Differences(*self.moments)):
            for batch in from_ipc(result.payload):
                yield result.name, batch

    def diff_schemas(self) -> dict[str, pa.Schema]:
        """The columns of `differences`, by table."""
        return {name: diff_schema(*(self._version(moment, name) for moment in self.moments)) for name in self.tables}

    def row_schemas(self) -> dict[str, pa.Schema]:
        """The columns of `rows`, by table."""
        return {name: schema(self._version(self.moments[-1], name).columns) for name in self.tables}

    def _version(self, moment: int, name: str) -> Version:
        assert self.asked.plan is not None
        return self.asked.plan.family_with(self.asked.tables[moment][name].table.id).version_at(moment, name)

    def _results(self, finish: Finish) -> Iterator[Result]:
        plan = self.asked.plan
        if plan is None:
            return
        holds = Holds(Archive.open(self.archive_url).storage)
        hold = Hold(f"`sluice as-of` {tso.text(self.moments[-1])}", self.asked.start_ts, self.bases)
        with holds.held(f"as-of-{secrets.token_hex(6)}", hold):
            wanted = self.moments[-1]
            yield from (result for result in self.run(plan, finish) if result.moment == wanted)


def tables_as_of(
    settings: Settings, ts: int, tables: Sequence[str], *, ignored: Collection[int] = (), run: Run | None = None
) -> Past:
    """Tables (`schema.table` then, also with * and ?) as of `ts` (TSO): every transaction committed through it, and no
    other. What is landed and not archived yet is archived first.

    `ignored`: commit timestamps of transactions to be left out. `run`: `BySpark` unless something else is given. Raises
    AsOfError with the table and what hinders, errors of `etl.archive.archive_through`, relay errors.
    """
    return _past(settings, (ts,), tables, ignored, run)


def differences_between(
    settings: Settings, earlier: int, later: int, tables: Sequence[str], *, run: Run | None = None
) -> Past:
    """For `Past.differences` between two moments (TSO); see `tables_as_of`."""
    return _past(settings, (earlier, later), tables, (), run)


def _past(
    settings: Settings, moments: tuple[int, ...], tables: Sequence[str], ignored: Collection[int], run: Run | None
) -> Past:
    url = settings.archive_url
    archive = Archive.open(url)
    last = archive.last()
    if last is None or last.hi < moments[-1]:
        archive_through(settings, moments[-1])
    bases = _Bases(url, moments[0])
    asked = ask(archive.log, bases, moments, tables, ignored)
    return Past(url, asked, tuple(filter(None, bases.opened[-1:])), run or BySpark(settings.spark.remote), moments)


@dataclass(slots=True)
class _Bases:
    """The bases at or before a moment, from the newest to the oldest, opened as they are needed."""

    url: str
    moment: int
    opened: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Start]:
        bases = Archive.open(self.url).bases
        ts = self.moment
        while (base := bases.latest(ts)) is not None:
            source = BaseSource.of(self.url, base)
            tables = {table.id: table for table in source.definitions().tables if table.is_base_table}
            self.opened.append(base.id)
            yield Start(base.ts, tables, source)
            ts = base.ts - 1
        self.opened.append("")


__all__ = ["Past", "Run", "differences_between", "tables_as_of"]
