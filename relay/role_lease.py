"""Choose which of several pipelines does a role that is done once for all, such as landing.

One does it, and the others stand by. No correctness rests on this: the claim decides which one has
the role, and two that land are kept apart by the windows' names. It keeps pipelines from taking the
role from each other all the time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sluice.relay.log import RelayLog

__all__ = ["TAKEOVER_TIMEOUT_S", "RoleStandby"]

TAKEOVER_TIMEOUT_S = 30.0
"""Another pipeline takes over a role that has made no progress for this time.

Between two runs of a DAG it is less.
"""


class RoleStandby:
    """Decide when this pipeline should claim a role."""

    def __init__(
        self, relay: RelayLog, role: str, position: Callable[[], object], log: logging.Logger
    ) -> None:
        """Watch a role.

        `position` returns how far the role's work is, whichever pipeline does it.
        """
        self._relay = relay
        self._role = role
        self._position = position
        self._log = log
        self._last_position: tuple[str, object] | None = None
        self._since = 0.0

    def should_claim(self, timeout_s: float = TAKEOVER_TIMEOUT_S) -> bool:
        """Return true unless another pipeline has the role and makes progress.

        Raises relay errors, OSError.
        """
        holder = self._relay.claimant(self._role)
        if holder is None or holder == self._relay.pipeline:
            self._last_position = None
            return True
        seen = holder, self._position()
        if self._last_position is None or self._last_position[0] != holder:
            self._log.info("%s does %s; this one stands by", _pipeline_text(holder), self._role)
        if seen != self._last_position:
            self._last_position, self._since = seen, time.monotonic()
            return False
        if time.monotonic() - self._since < timeout_s:
            return False
        self._log.warning(
            "%s hasn't got on with %s for %.0f s; this one takes over",
            _pipeline_text(holder),
            self._role,
            timeout_s,
        )
        self._last_position = None
        return True


def _pipeline_text(pipeline: str) -> str:
    return f"the pipeline {pipeline}" if pipeline else "the pipeline without a name"
