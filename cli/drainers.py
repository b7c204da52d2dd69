"""sluice drainers: those in the registry, and how one of them leaves it."""

from __future__ import annotations

from sluice.cli._nodes import group_of

command = group_of("drainers")
