"""Understand the options of ``spark.read.format("sluice")``: which changes, of what, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sluice.errors import RequestError
from sluice.etl.history.history_log import HistoryLog
from sluice.etl.settings import Archive, Downstream, Relay, Settings, Upstream, load_settings
from sluice.tidb import tso
from sluice.tidb.moments import parse_moment
from sluice.tidb.table_name import TableName

__all__ = ["ChangeQuery", "ChangesError", "check_range", "settings_from"]

OPTIONS = ("config", "relay", "archive", "table", "since", "until", "consumer")
"""The options of the data source, beside those of `sluice.spark.stream`."""


class ChangesError(RequestError):
    """A query's changes aren't available in the way that it asks for."""

    hint = "correct the option that it names, and load again"


@dataclass(frozen=True, slots=True)
class ChangeQuery:
    """The changes of a table that were committed after `since` through `until` (TSO)."""

    settings: Settings
    table: TableName
    since: int | None = None
    """None: from the beginning of what there is; a stream begins with what lands from now on."""
    until: int | None = None
    """None: through what had landed when the query was bound."""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> ChangeQuery:
        """Parse a data source's options.

        Raises ChangesError, SettingsError, TableNameError, MomentError.
        """
        if not (table := options.get("table")):
            raise ChangesError(
                'the option "table" is missing', hint='.option("table", "db.orders")'
            )
        if "`" not in table and any(sign in table for sign in "*?"):
            raise ChangesError(
                f'the option "table" is {table!r}, a pattern: a frame has the columns of one table',
                hint='load each table by its name (in backquotes one with * or ?: "db.`a*`"), or'
                f" take `sluice.spark.tables_as_of(spark, moment, {table!r})`, a frame a table",
            )
        moments = (options.get(name) for name in ("since", "until"))
        since, until = (parse_moment(text) if text else None for text in moments)
        return cls(settings_from(options), TableName.parse(table), since, until)

    def past(self) -> HistoryLog:
        """Open the archive and the relay log. Raises FindError, relay errors."""
        return HistoryLog.open(self.settings)

    def bound(self) -> ChangeQuery:
        """Return the query with both moments, so that each action sees the same changes.

        Raises as `past`.
        """
        past = self.past()
        return replace(
            self,
            since=past.first if self.since is None else self.since,
            until=past.last if self.until is None else self.until,
        )


def check_range(past: HistoryLog, since: int, until: int) -> None:
    """Check that all that was committed after `since` through `until` (TSO) is there.

    Raises ChangesError.
    """
    if since > until:
        raise ChangesError(f"since {tso.text(since)} is behind until {tso.text(until)}")
    if since < past.first:
        raise ChangesError(
            f"what was committed through {tso.text(past.first)} is in neither"
            f" {past.settings.archive_url} nor {past.settings.relay.url}:"
            f" since {tso.text(since)} can't be had",
            hint=f'.option("since", "{past.first}"), or no since, begins with the oldest change',
        )
    if until > past.last:
        raise ChangesError(
            f"what was committed through {tso.text(past.last)} has landed: until"
            f" {tso.text(until)} can't be had yet",
            hint="load again once `sluice status` shows it as landed, or take an earlier until",
        )


def settings_from(options: Mapping[str, str]) -> Settings:
    """Return the settings of a pipeline: of the file ``config``, or of URLs.

    Without options the file is that of ``$SLUICE_CONFIG``. Raises ChangesError, SettingsError.
    """
    config, relay, archive = (options.get(name, "") for name in ("config", "relay", "archive"))
    if not relay:
        if archive:
            raise ChangesError(
                'the option "archive" needs "relay", the URL of the relay log',
                hint='.option("relay", "s3://bucket/relay")',
            )
        return load_settings(config or None)
    if config:
        raise ChangesError('the options "config" and "relay" name two pipelines')
    # With a name it opens a log that several pipelines share; no file of that name is written.
    read_only = Relay(relay, pipeline="spark")
    return Settings(Upstream(""), read_only, Downstream(), archive=Archive(archive))
