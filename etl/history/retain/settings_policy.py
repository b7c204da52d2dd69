"""Make the retention policy of the settings of all pipelines on an archive."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from sluice.etl.changes.rules import Filter
from sluice.etl.history.retain.policy import RetentionPolicy
from sluice.etl.settings import Settings, SettingsError
from sluice.etl.settings.pipelines import pipelines
from sluice.tidb.table_name import TableName

__all__ = ["policy_of"]

log = logging.getLogger("sluice.archive")


def policy_of(settings: Settings) -> RetentionPolicy:
    """Return the retention policy of the settings.

    A table counts if any pipeline of this installation on the archive wants it; each does while the
    settings of another pipeline can't be read.
    """
    filters = [settings.rules.filters]
    try:
        filters += [
            other.rules.filters for other in _other_settings_of_archive(settings.archive_url)
        ]
    except (SettingsError, OSError) as error:
        log.warning(
            "every table counts, as the settings of another pipeline can't be read: %s", error
        )
        filters.append(Filter())

    def wanted(name: str) -> bool:
        table = TableName.parse(name)
        return any(each.wants_table(*table) for each in filters)

    return RetentionPolicy(settings.archive.keep_ms, settings.archive.snapshots_keep_ms, wanted)


def _other_settings_of_archive(archive_url: str) -> Iterator[Settings]:
    """Yield the settings of the pipelines of this installation on that archive.

    Raises SettingsError.
    """
    for pipeline in pipelines().values():
        if pipeline.path is not None and (settings := pipeline.settings).archive_url == archive_url:
            yield settings
