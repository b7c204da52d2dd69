"""From the relay log to the downstream."""

from etl.apply.run import run_apply

__all__ = ["run_apply"]
