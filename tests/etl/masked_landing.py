"""A story's windows as landing writes them if it masks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sluice.etl.changes.masks.landed_rows import MaskOrder, masked_batches
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.rules.landed_masks import LandedMasks
from sluice.etl.settings import Relay, Settings
from sluice.relay import RelayLog, iter_parts


def land_again(settings: Settings, folder: Path, since: int = 0) -> Settings:
    """Copy the windows behind `since` (TSO) into the relay log of `folder`, masked by the rules.

    The settings of that relay log.
    """
    relay, masks = settings.open_relay(), LandedMasks(settings.filters)
    found = replace(settings, relay=Relay(f"file://{folder}/masked"))
    other = RelayLog.open(found.relay.url)
    for window in relay.windows(since):
        schema = RecordedSchema.from_window(window)
        ids = {
            table_id
            for batch in iter_parts(relay.storage, window.parts)
            for table_id in batch["table_id"].to_pylist()
        }
        order = MaskOrder.from_text(masks.order_within(schema, ids).text)
        rows = masked_batches(iter_parts(relay.storage, window.parts), order, ())
        part = other.write_part(window.lo, window.hi, "m", 0, rows)
        made = replace(window, parts=(part,) if part is not None else ())
        other.commit(masks.describe(schema).write_to(made))
    return found
