"""Identify this pipeline: in the registry among the drainers, and to its downstream."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from sluice.etl.settings import Settings
    from sluice.tidb import NodeStatus

OWNER_LABEL = "sluice"
"""The label that a pipeline's entry has, and no Drainer's; its value is the relay log's URL.

Beside it stands `downstream`.
"""


def default_node_id(relay_url: str) -> str:
    """Return the relay log's node id, the same wherever the task runs."""
    return f"sluice-{zlib.crc32(relay_url.rstrip('/').encode()):08x}"


def writes_elsewhere(drainer: NodeStatus, downstream: str) -> bool:
    """Return whether a registry entry names a pipeline with another downstream than `downstream`.

    `downstream`: a `downstream_name`. No Drainer's entry names where it writes to.
    """
    label = drainer.label or {}
    return OWNER_LABEL in label and label.get("downstream") != downstream


@dataclass(frozen=True, slots=True)
class PipelineIdentity:
    """A pipeline's identity."""

    id: str
    """The pipeline's id among the drainers in the registry."""
    relay_url: str
    downstream: str
    """The name of what it writes to, see `downstream_name`."""

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the pipeline of the settings."""
        relay_url = settings.relay.url
        return cls(
            settings.upstream.node_id or default_node_id(relay_url),
            relay_url,
            settings.downstream_name,
        )

    @property
    def label(self) -> dict[str, str]:
        """Return what its entry in the registry has beside its id."""
        return {OWNER_LABEL: self.relay_url, "downstream": self.downstream}


def describe_pipeline(settings: Settings) -> str:
    """Describe the pipeline of the settings in a line, from them alone."""
    pipeline = PipelineIdentity.from_settings(settings)
    name = f"{settings.name} ({pipeline.id})" if settings.name else pipeline.id
    return (
        f"pipeline {name}: TiDB at {settings.upstream.pd_urls}, to {pipeline.downstream},"
        f" relay log {pipeline.relay_url}"
    )
