"""A pipeline as a base is made of it: its upstream, its downstream, its relay log, its archive."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Self

from etl.base.errors import BaseError
from etl.base.hindrances import downstream_tables, hindrances, some
from etl.base.plan import BasePlan, plan_of_source, schemas_of, table_of
from etl.base.request import ARCHIVE, AUTO, DOWNSTREAM, TIDB, BaseWish
from etl.base.rolled import definitions_after, rolled_plan
from etl.base.unchanged import changed_tables, ddl_tables, landed_windows, unchanged_tables
from etl.copy.cluster import CopiedCluster
from etl.copy.definitions import Definitions
from etl.copy.dumpling import DumplingFolder
from etl.copy.source import Source
from etl.copy.tidb_sql import TidbAddress, TidbSql
from etl.downstream import CheckpointTable, MySQLSession
from etl.ownership import downstream_name
from etl.settings import Settings
from relay import RelayError
from relay.archive import Archive, Base, Bases, BaseTable, base_id
from relay.jobs import Jobs, Touches
from upstream import tso

__all__ = ["BasePlace"]

_FRESH_MS = 300_000
"""TiDB is read as of what is landed if that is no older: its GC hasn't passed it, and what has changed is known."""


class BasePlace:
    """Every method raises CopyError, BaseError, DownstreamError, PDError, TiKVError, RelayError, OSError."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self.settings = settings
        self.relay = settings.open_relay()
        self.jobs = Jobs.of(self.relay)
        self.archive = Archive.open(settings.archive_url)
        self.bases: Bases = self.archive.bases
        self.cluster = stack.enter_context(CopiedCluster.of(settings.upstream))

    @classmethod
    @contextmanager
    def of(cls, settings: Settings) -> Iterator[Self]:
        with ExitStack() as stack:
            yield cls(settings, stack)

    @property
    def touches(self) -> Touches:
        """A base is made of what is there: nothing is written to."""
        return Touches(downstream_name(self.settings.target), ())

    def plan(self, wish: BaseWish) -> BasePlan:
        """What is to be done. Nothing is written."""
        if wish.source == DOWNSTREAM:
            return self.downstream_plan()
        if wish.source == ARCHIVE:
            return self.rolled_plan()
        source = self._source(wish)
        definitions = self.cluster.definitions(source.position)
        older, unchanged = self.unchanged(definitions, full=wish.full)
        name = base_id(source.position, secrets.token_hex(6))
        plan = plan_of_source(name, source, definitions, self.cluster.pd.cluster_id, unchanged)
        return replace(plan, older=older, notes=(*plan.notes, *self._before_the_archive(plan.ts)))

    def chosen(self, wish: BaseWish) -> BaseWish:
        """AUTO as what is possible here: the downstream, which costs TiDB nothing, then TiDB, then an older base."""
        if wish.source != AUTO:
            return wish
        try:
            problems = list(self.downstream_plan().problems)
        except BaseError as error:
            problems = [str(error)]
        if not problems:
            return replace(wish, source=DOWNSTREAM)
        if self.settings.upstream.sql_host:
            return replace(wish, source=TIDB)
        if self.bases.latest(2**63 - 1) is not None:
            return replace(wish, source=ARCHIVE)
        raise BaseError(some(problems), way_out="say where TiDB serves SQL: [upstream] sql-host")

    def rolled_plan(self) -> BasePlan:
        """The youngest base rolled forward through what is landed."""
        older = self.bases.latest(2**63 - 1)
        if older is None:
            raise BaseError(
                f"{self.archive.url} has no base that could be rolled forward",
                way_out="make the first one from TiDB, from a dump or from the downstream: `sluice base make --from`",
            )
        last = self.relay.last() or self.archive.log.last()
        ts = max(older.ts, last.hi if last is not None else 0)
        windows = list(landed_windows(self.archive, self.relay, older.ts, ts))
        definitions = definitions_after(older, windows, ts)
        changed = changed_tables(windows, older.ts, ts)
        if changed is None:
            raise BaseError(
                f"what was committed between the base {older.id} and {tso.text(ts)} isn't all in {self.archive.url}",
                way_out="make a base from TiDB or from the downstream",
            )
        return rolled_plan(base_id(ts, secrets.token_hex(6)), older, definitions, changed)

    def downstream_plan(self) -> BasePlan:
        """What the downstream is now: tables, and why no base can be read from it. Rows are read as of a later
        checkpoint.
        """
        downstream = self.settings.downstream
        if downstream.type != "mysql":
            raise BaseError(
                f"[downstream] type is {downstream.type}: it can't be read", way_out="make the base from TiDB"
            )
        session = MySQLSession(downstream)
        try:
            session.connect()
            table = CheckpointTable.of(session, downstream, self.cluster.pd.cluster_id)
            checkpoint = table.load() if table.is_there() else None
            session.rollback()
            if checkpoint is None:
                raise BaseError(
                    f"{session.address} has no checkpoint: it is no replica yet",
                    way_out="make the base from TiDB or from a dump",
                )
            definitions = self.cluster.definitions(checkpoint.commit_ts).of_users()
            _, problems = downstream_tables(self.settings, definitions, session)
        finally:
            session.close()
        problems += hindrances(self.settings, self.relay, definitions)
        return BasePlan(
            "", checkpoint.commit_ts, definitions.schema_version, self.cluster.pd.cluster_id,
            f"the downstream {downstream.host}:{downstream.port}", {"kind": DOWNSTREAM},
            schemas_of(definitions.schemas), tuple(map(table_of, definitions.tables)), problems=tuple(problems),
            notes=("rows are read as of the checkpoint at which the job begins to read",),
        )  # fmt: skip

    def unchanged(self, definitions: Definitions, *, full: bool) -> tuple[str, dict[str, BaseTable]]:
        """The youngest base that isn't later than `definitions`, and the tables that have not changed since, by full
        name; "" and none if there is no such base, `full`, or it isn't known what has changed.
        """
        older: Base | None = None if full else self.bases.latest(definitions.ts)
        if older is None or older.cluster_id != self.cluster.pd.cluster_id:
            return "", {}
        changed = self.changed(older.ts, definitions.ts)
        if changed is None:
            return "", {}
        return older.id, unchanged_tables(older, definitions.of_users().tables, changed)

    def changed(self, from_ts: int, to_ts: int) -> set[int] | None:
        """See `etl.base.unchanged.changed_tables`; None as well where the log can't be read."""
        try:
            return changed_tables(landed_windows(self.archive, self.relay, from_ts, to_ts), from_ts, to_ts)
        except RelayError:
            return None

    def changed_by_ddl(self, from_ts: int, to_ts: int) -> set[int] | None:
        """Ids of the tables that DDL committed in (from_ts, to_ts] touched; None if not all of it is landed."""
        return ddl_tables(landed_windows(self.archive, self.relay, from_ts, to_ts), from_ts, to_ts)

    def ddl_since(self, ts: int) -> tuple[int, set[int] | None]:
        """Through where (TSO) DDL may have been executed downstream since `ts`, and `changed_by_ddl` until then."""
        session = MySQLSession(self.settings.downstream)
        session.connect()
        try:
            now = CheckpointTable.of(session, self.settings.downstream, self.cluster.pd.cluster_id).load(wait=True)
        finally:
            session.close()
        reached = max(now.commit_ts, now.pending.commit_ts if now.pending else 0) if now is not None else ts
        return reached, self.changed_by_ddl(ts, reached)

    def _source(self, wish: BaseWish) -> Source:
        if wish.source == TIDB:
            address = TidbAddress.of(self.settings.upstream)
            last, now = self.relay.last(), self.cluster.pd.tso()
            if last is not None and tso.physical_ms(now) - tso.physical_ms(last.hi) < _FRESH_MS:
                return TidbSql(address, last.hi)
            return TidbSql.now(address)
        return DumplingFolder.open(wish.source, wish.options)

    def _before_the_archive(self, ts: int) -> list[str]:
        first = self.archive.first() or self.relay.first()
        if first is None or first.lo <= ts:
            return []
        return [
            f"what was committed between {tso.text(ts)} and {tso.text(first.lo)} is in no archive: this base serves its"
            " own moment only"
        ]
