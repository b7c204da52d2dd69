"""Expectations of the replication itself."""

from __future__ import annotations

from expectations.gx.own import OwnExpectation

OF_REPLICATION: dict[str, type[OwnExpectation]] = {}
