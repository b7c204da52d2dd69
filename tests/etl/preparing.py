"""Windows prepared without Spark."""

from __future__ import annotations

from etl.apply import prepare_options
from etl.apply.run import Prepare
from etl.prepare import prepare
from etl.settings import Settings


def local_preparer(settings: Settings) -> Prepare:
    """Prepares in this process, as Spark's workers would."""
    options = prepare_options(settings)
    return lambda windows: prepare(settings.relay.url, windows, options)
