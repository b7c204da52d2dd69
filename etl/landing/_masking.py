"""Mask a pipeline's masked columns in the windows that it lands.

What is masked of a window depends on its tables. Before its rows are read, these are known only if
TiDB has changed no schema through the window's end. Else a first job lands what changed when, of
which table, without any value. Landing looks up the window's DDL by that, and a second job lands
its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from sluice.errors import SluiceError
from sluice.etl.changes.masks.landed_rows import MaskOrder
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.rules import masks_digest
from sluice.etl.changes.rules.landed_masks import LandedMasks
from sluice.etl.landing._job_queue import FinishedPlan, LandingJobs
from sluice.etl.landing.schema import LandingSchema
from sluice.etl.landing.upstream_schema import PendingVersion
from sluice.etl.settings import Settings
from sluice.etl.settings.mask_rules import CLEAR
from sluice.relay import RelayLog
from sluice.relay.landed_masks import LandedMasksLog
from sluice.tidb import TiKVError, tso
from sluice.tidb.ddl_job import DdlJob


class OtherMasksError(SluiceError):
    """The relay log is masked by a pipeline's settings, and these would land other values."""

    hint = (
        "give this pipeline a relay log of its own, or the same masks and key; to land clear values"
        ' here from now on, write relay-log = "clear" in [filter.mask]'
    )


def note_masks(settings: Settings, relay: RelayLog, since_ts: int) -> None:
    """Record how the windows behind a TSO are masked, before the first of them.

    Raises OtherMasksError, MaskKeyError, relay errors.
    """
    known = LandedMasksLog(relay.storage)
    before = known.load()
    digest = masks_digest(settings.filters) if settings.lands_masked else ""
    if digest == before.digest:
        return
    is_own = before.pipeline == relay.pipeline and settings.lands_masked
    if before.digest and not is_own and settings.relay_log_values != CLEAR:
        raise OtherMasksError(
            f"the relay log {relay.url} has been masked since {tso.text(before.since_ts)}, by the"
            f" settings of pipeline {before.pipeline!r}, and those of pipeline {relay.pipeline!r}"
            f" mask {'otherwise' if digest else 'nothing'}"
        )
    known.note(digest, since_ts, relay.pipeline)


class WindowMasking:
    """The masks of one landing process. Methods raise ColumnRuleError and MaskKeyError."""

    def __init__(self, settings: Settings, relay: RelayLog, jobs: LandingJobs) -> None:
        """Take the masks of the settings."""
        self._masks = LandedMasks(settings.filters)
        self._ignored_ts = settings.ignored_ts
        self._relay = relay
        self._jobs = jobs
        self._order = (0, 0), MaskOrder({})
        """The order for windows that end at a schema version, with that and how many tables."""

    def order_at(self, schema: LandingSchema, version: PendingVersion) -> MaskOrder | None:
        """Return what is masked of a window; None if its tables aren't known yet.

        `version`: that of the window's end.
        """
        try:
            if version.result() != schema.schema_version:
                return None
        except TiKVError:  # landing asks again, and tells of it
            return None
        known = schema.schema_version, len(schema.tables)
        if self._order[0] != known:
            self._order = known, self._masks.order_of(schema.tables)
        return self._order[1]

    def mask(
        self, landed: FinishedPlan, schema: RecordedSchema, token: str, skips: Collection[int]
    ) -> FinishedPlan:
        """Return the window masked by its own tables: as it came, or landed once more.

        `schema`: the window's, as it is upstream. Raises ScopeError for a DDL behind which masks
        would mean something else, and as LandingJob.run.
        """
        self._masks.check(schema, self._decided(landed))
        if not landed.result.parts:
            return landed
        wanted = self._masks.order_within(schema, landed.result.tables)
        if landed.masks is not None and _is_within(wanted, landed.masks):
            return landed
        return self._jobs.run_again(landed, token, skips, wanted)

    def describe(self, schema: RecordedSchema) -> RecordedSchema:
        """Return a window's schema as its record has it: with masked defaults."""
        return self._masks.describe(schema)

    def _decided(self, landed: FinishedPlan) -> Callable[[DdlJob], bool]:
        """Return whether an operator has decided about a DDL."""
        found: set[int] = set()

        def is_decided(ddl: DdlJob) -> bool:
            if not found:
                found.update(
                    self._ignored_ts,
                    (one.commit_ts for one in self._relay.overrides.list(landed.plan.lo)),
                )
            return ddl.commit_ts in found

        return is_decided


def _is_within(wanted: MaskOrder, done: MaskOrder) -> bool:
    """Return whether a window that was masked by `done` is masked as `wanted`."""
    return wanted.others <= done.others and all(
        len(states) == 1 and done.tables.get(table_id, ((0, None),))[0][1] == states[0][1]
        for table_id, states in wanted.tables.items()
    )
