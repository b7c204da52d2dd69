"""Windows of captured changes, planned as landing does and taken by a subclass."""

import time

from sluice.etl.landing.planner import PumpUnavailableError, WindowPlanner
from sluice.etl.settings import Window as Limits
from sluice.tidb import NodeStatus, PumpReadError
from tests.pump_service.capture.captured_stage import TIMEOUT_S

CLUSTER_ID = 7096212345678901234
LIMITS = Limits(max_transactions=50, idle_interval_ms=0)


class WindowTaker:
    """Takes window after window; `now` is the upstream's clock."""

    def __init__(self, begin, registry):
        self.now = self.lo = begin
        self.hosts = set()
        self._registry = registry
        self._planner = WindowPlanner(CLUSTER_ID, LIMITS, lambda: self.now + 1, registry.pumps)

    def take(self, plan):
        """Take the window. A pump that doesn't answer raises PumpReadError: it comes again."""
        raise NotImplementedError

    def land(self):
        """Land the next window. Return whether there was one."""
        try:
            plan = self._planner.plan(self.lo, empty_now=True) if self.now > self.lo else None
            if plan is None:
                return False
            self.take(plan)
        except (PumpUnavailableError, PumpReadError):
            return False
        self.hosts |= {one.host for each in plan.ranges for one in (each, *each.others)}
        self.lo = plan.hi
        self.register()
        return True

    def register(self):
        status = NodeStatus("reader", "here", "paused", max_commit_ts=self.lo)
        self._registry.update_drainer(status)

    def wait_through(self, ts, stage):
        deadline = time.monotonic() + TIMEOUT_S
        while self.lo < ts:
            stage.advance(ts)
            assert self.land() or time.monotonic() < deadline, (self.lo, ts)

    def close(self):
        self._planner.close()
