"""Check the settings of clusters that replicate each to the next: ``[downstream] ring``."""

from __future__ import annotations

from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.sections import Settings

_MIN_CLUSTERS = 2


def check_ring(name: str, settings: Settings) -> None:
    """Raise SettingsError if the ring in file `name` can't be replicated."""
    if why := _obstacle(settings):
        shown = ", ".join(map(str, settings.downstream.ring))
        raise SettingsError(f"{name}: [downstream] ring = [{shown}]: {why}")


def _obstacle(settings: Settings) -> str:
    downstream = settings.downstream
    ring = downstream.ring
    if not ring:
        return ""
    if not downstream.loopback_control:
        return "needs loopback-control = true"
    if downstream.type != "mysql":
        return f"it is for databases, and [downstream] type is {downstream.type}"
    if len(ring) < _MIN_CLUSTERS or len(set(ring)) < len(ring):
        return "it must have the channels of all clusters, each once"
    if downstream.channel_id not in ring:
        return f"channel-id = {downstream.channel_id}, the upstream's channel, is not in it"
    if settings.apply.reverse_relay:
        return (
            "can't be used with [apply] reverse-relay: a change that is passed on has the commit"
            " time of the cluster in between, so which one is the last isn't known"
        )
    return ""
