"""Windows prepared without Spark."""

from __future__ import annotations

from sluice.etl.apply import prepare_options
from sluice.etl.apply.run import Prepare
from sluice.etl.changes.planning import prepare
from sluice.etl.settings import Settings


def local_preparer(settings: Settings) -> Prepare:
    """Prepares in this process, as Spark's workers would."""
    options = prepare_options(settings)
    return lambda windows: prepare(settings.relay.url, windows, options)
